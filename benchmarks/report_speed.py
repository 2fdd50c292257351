"""How large a report of many long runs is, and how long it takes to make and to open.

    python benchmarks/report_speed.py [RUNS] [ROUNDS]

Needs Chromium. The runs are written by hand: every round is evaluated, which is the most there can
be to draw.
"""

import json
import math
import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from nefl.config import RunConfig
from nefl.report.page.make import browser_library_once, make_page
from nefl.report.reading.folders import read_runs


def write_runs(folder: Path, runs: int, rounds: int) -> None:
    """Write run folders with a log and no checkpoint."""
    for number in range(runs):
        run = folder / f"run-{number:02d}"
        run.mkdir()
        config = RunConfig(seed=number, rounds=rounds).to_dict()
        (run / "config.json").write_text(json.dumps(config))
        with (run / "metrics.jsonl").open("w") as log:
            for n in range(1, rounds + 1):
                reached = 0.9 - 0.8 * math.exp(-n / 80) - number / 100
                line = {
                    "event": "round",
                    "round": n,
                    "tasks": 10,
                    "trained": {str(k): 2 for k in range(1, 6)},
                    "loss": 2.3 * math.exp(-n / 100) + 0.01 * number,
                    "bytes_down": 10_000_000 + n,
                    "bytes_up": 10_000_000,
                    "failures": [],
                    "wall_seconds": 3 + math.sin(n) / 5,
                    "metrics": {"accuracy": [reached - 0.02 * k for k in range(5, 0, -1)]},
                }
                log.write(json.dumps(line) + "\n")


def main() -> None:
    runs, rounds = (int(a) for a in (sys.argv[1:] + ["20", "500"][len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_runs(folder, runs, rounds)
        started = time.perf_counter()
        browser_library_once()
        bundled = time.perf_counter()
        found, _ = read_runs([folder])
        assert len(found) == runs
        assert all(run.status == "finished" for run in found)
        page = folder / "report.html"
        page.write_text(make_page(found))
        made = time.perf_counter()
        print(f"{runs} runs of {rounds} rounds: {page.stat().st_size / 2**20:.2f} MiB")
        print(f"library bundled in {bundled - started:.1f} s, page made in {made - bundled:.1f} s")
        with sync_playwright() as playwright:
            chromium = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
            )
            tab = browser.new_page()
            started = time.perf_counter()
            tab.goto(page.as_uri())
            loaded = time.perf_counter()
            tab.wait_for_selector("[data-figure=curves][data-ready]", timeout=300_000)
            first = time.perf_counter()
            tab.wait_for_selector("body[data-drawn]", state="attached", timeout=300_000)
            drawn = time.perf_counter()
            box = tab.locator("input[data-run]").first
            box.click()
            tab.evaluate("() => new Promise(go => requestAnimationFrame(() => setTimeout(go, 0)))")
            switched = time.perf_counter()
            print(
                f"loaded after {loaded - started:.1f} s, first figure after "
                f"{first - started:.1f} s, all figures after {drawn - started:.1f} s, a run "
                f"switched off in {switched - drawn:.1f} s"
            )
            browser.close()


if __name__ == "__main__":
    main()
