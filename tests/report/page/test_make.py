"""A report in a real browser: it asks nobody for anything, answers to its switches, and is safe."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from nefl.report.page.make import make_page
from nefl.report.page.packed import pack, script_json
from nefl.report.reading.folders import read_runs
from nefl.running.lifecycle import train
from tests.report.conftest import PERPLEXITY, MakeRun, round_line

EVIL = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script>'


WAIT = 60_000
"""Milliseconds; a busy machine takes its time."""


class Opened:
    """A page in the browser, with what it said and asked for."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-drawn]", timeout=120_000, state="attached")

    def check(self) -> None:
        assert not [line for line in self.said if not line.startswith("warning")], self.said
        strangers = [url for url in self.asked if not url.startswith(("file:", "data:"))]
        assert not strangers


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1100, "height": 900})
    yield context.new_page()
    context.close()


def write(path: Path, *folders: Path) -> Path:
    path.write_text(make_page(read_runs(folders)[0]))
    return path


def test_one_trained_run_has_every_figure(
    page: Page, quick: dict[str, Any], tmp_path: Path
) -> None:
    quick["clients"] |= {
        "capability": "devices",
        "devices": [
            {"name": EVIL, "memory": 3e5, "macs_per_second": 1e7, "bandwidth": 1e5},
            {"name": "phone", "memory": 1e9, "macs_per_second": 1e9, "bandwidth": 1e6},
        ],
    }
    train(quick | {"about": EVIL}, tmp_path / "run")
    opened = Opened(page, write(tmp_path / "report.html", tmp_path / "run"))
    drawn = {c.get_attribute("data-figure") for c in page.query_selector_all(".chart[data-ready]")}
    assert drawn == {
        "curves", "extremes", "loss", "by-macs", "by-parameters",
        "by-bytes", "step-sizes", "l1-norms", "coverage", "tiers", "labels",
        "simulated-time", "by-time", "seconds", "traffic",
    }  # fmt: skip
    text = page.inner_text("main")
    for told in ("finished", "nefl train", "seed 0", "torch", EVIL):
        assert told in text
    assert page.evaluate("window.hacked") is None
    summary = page.locator("summary", has_text="Step sizes as a table")
    summary.focus()
    page.keyboard.press("Enter")
    row = page.locator("[data-table] table").first.locator("tr").nth(5)
    expect(row).to_be_attached(timeout=WAIT)
    budget = page.locator("#budget")
    budget.focus()
    page.keyboard.press("End")
    expect(page.locator("#budget-picks")).to_contain_text("submodel", timeout=WAIT)
    opened.check()


def test_runs_are_switched_and_hovered_and_their_names_stay_text(
    page: Page, make_run: MakeRun, tmp_path: Path
) -> None:
    name = "<img src=x onerror=window.hacked=1>"
    first = make_run(name, [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    other = {"model.method": "fjord"}
    second = make_run("plain", [[0.2, 0.3], [0.3, 0.4], [0.4, 0.5]], settings=other)
    opened = Opened(page, write(tmp_path / "report.html", first, second))
    runs_in = "() => document.querySelectorAll('[data-figure=curves] .mark-line path').length"
    assert page.evaluate(runs_in) == 2
    box = page.locator("input[data-run]").first
    box.focus()
    page.keyboard.press("Space")
    page.wait_for_function(f"({runs_in})() === 1")
    page.keyboard.press("Space")
    page.wait_for_function(f"({runs_in})() === 2")
    page.select_option("#measure", "worst")
    page.locator("[data-figure=curves]").evaluate("chart => chart.scrollIntoView()")
    chart = page.locator("[data-figure=curves] svg").bounding_box()
    assert chart is not None
    tips = []
    for across, down in ((0.1, 0.1), (0.5, 0.4), (0.9, 0.1), (0.1, 0.7), (0.9, 0.3)):
        page.mouse.move(chart["x"] + chart["width"] * across, chart["y"] + chart["height"] * down)
        page.wait_for_selector("#vg-tooltip-element.visible")
        tips.append(page.inner_text("#vg-tooltip-element"))
    assert any(name in tip for tip in tips), tips
    assert all("accuracy" in tip for tip in tips)
    assert page.evaluate("window.hacked") is None
    opened.check()


def test_seeds_are_averaged_and_drawn_each_on_request(
    page: Page, make_run: MakeRun, tmp_path: Path
) -> None:
    paths = [
        make_run(
            f"{method}-{seed}",
            [[0.1, 0.2], [0.3 + seed / 10, 0.5]],
            settings={"model.method": method, "seed": seed},
        )
        for method in ("nefl-wd", "fjord")
        for seed in (0, 1)
    ]
    opened = Opened(page, write(tmp_path / "report.html", *paths))
    lines = "() => document.querySelectorAll('[data-figure=curves] .mark-line path').length"
    assert page.evaluate(lines) == 2
    page.select_option("#seeds", "each")
    page.wait_for_function(f"({lines})() === 4")
    page.locator("input[data-run]").first.uncheck()
    page.wait_for_function(f"({lines})() === 3")
    page.select_option("#seeds", "averaged")
    page.wait_for_function(f"({lines})() === 2")
    opened.check()


@pytest.mark.long
def test_a_budget_picks_the_lowest_perplexity_and_tables_name_it(
    page: Page, make_run: MakeRun, tmp_path: Path
) -> None:
    paths = [
        make_run(
            method,
            [[60.0, 50.0, 40.0, 30.0, 20.0], final],
            settings={"model.method": method},
            metric=PERPLEXITY,
        )
        for method, final in (("nefl-w", [30.0, 9.5, 28.0, 27.0, 26.0]), ("fjord", [8.25] * 5))
    ]
    opened = Opened(page, write(tmp_path / "report.html", *paths))
    budget = page.locator("#budget")
    budget.focus()
    page.keyboard.press("End")
    picks = page.locator("#budget-picks li")
    expect(picks.nth(1)).to_contain_text("nefl-w: submodel 2, perplexity 9.5 with", timeout=WAIT)
    expect(picks.nth(0)).to_contain_text("fjord: submodel 1, perplexity 8.25 with")
    page.locator("summary", has_text="The test perplexity by MACs as a table").click()
    headings = page.locator("[data-table] th", has_text="perplexity")
    expect(headings.first).to_be_attached(timeout=WAIT)
    assert "accuracy" not in page.inner_text("main")
    opened.check()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_have_contrast(
    scheme: str, browser: Browser, make_run: MakeRun, tmp_path: Path
) -> None:
    path = write(tmp_path / "report.html", make_run("run", [[0.1, 0.2], [0.3, 0.4]]))
    context = browser.new_context(color_scheme="dark" if scheme == "dark" else "light")
    opened = Opened(context.new_page(), path)
    ink, paper = opened.page.evaluate(
        "() => { const s = getComputedStyle(document.body); return [s.color, s.backgroundColor] }"
    )
    axis = opened.page.evaluate(
        "() => document.querySelector('[data-figure=curves] .role-axis-label text')"
        ".getAttribute('fill')"
    )
    assert contrast(rgb(ink), rgb(paper)) >= 7
    assert contrast(rgb(axis), rgb(paper)) >= 7
    for line in opened.page.evaluate(
        "() => [...document.querySelectorAll('[data-figure=curves] .mark-line path')]"
        ".map(p => p.getAttribute('stroke'))"
    ):
        assert contrast(rgb(line), rgb(paper)) >= 3
    opened.check()
    context.close()


def rgb(text: str) -> list[int]:
    if text.startswith("#"):
        return [int(text[i : i + 2], 16) for i in (1, 3, 5)]
    return [int(number) for number in re.findall(r"\d+", text)[:3]]


def contrast(one: list[int], other: list[int]) -> float:
    def light(colour: list[int]) -> float:
        parts = [c / 255 for c in colour]
        line = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * line[0] + 0.7152 * line[1] + 0.0722 * line[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.long
def test_a_study_run_on_cifar10(
    page: Page, cifar10: Path, quick: dict[str, Any], tmp_path: Path
) -> None:
    quick["data"] = {"name": "cifar10", "root": str(cifar10), "train": 200, "test": 100}
    quick["partition"] = {"kind": "dirichlet"}
    train(quick | {"rounds": 2}, tmp_path / "real")
    opened = Opened(page, write(tmp_path / "report.html", tmp_path / "real"))
    named = page.locator("[data-figure=labels] svg").get_by_text("airplane").first
    expect(named).to_be_attached(timeout=WAIT)
    opened.check()


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ([], "no round has been finished"),
        ([round_line(1, [0.1, 0.2])], "unfinished, round 1 of 5"),
        (
            [{"event": "repeated", "round": 1, "why": EVIL, "failures": [{"reason": EVIL}]}] * 3,
            "failed, round 0 of 5",
        ),
        (
            ["{", "[]", '{"event": "round", "round": 1, "metrics": {"accuracy": [null]}}'],
            "round 1 of 5",
        ),
    ],
)
def test_runs_that_did_not_end_well_have_a_page(
    log: list[Any], told: str, make_run: MakeRun
) -> None:
    folder = make_run("run", log=log or ["{}"], settings={"rounds": 5})
    page = make_page(read_runs([folder])[0])
    assert told in page
    assert EVIL not in page


def test_json_in_a_script_cannot_end_it() -> None:
    text = script_json({"name": "</script><!-- &amp; \u2028", "nan": float("nan")})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"name": "</script><!-- &amp; \u2028", "nan": None}


def test_the_policy_lets_only_our_scripts_run(make_run: MakeRun) -> None:
    page = make_page(read_runs([make_run("run", [[0.1]])])[0])
    found = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert found
    rules = dict(rule.split(" ", 1) for rule in html.unescape(found[1]).split("; "))
    assert rules["default-src"] == "'none'"
    script = rules["script-src"]
    assert "unsafe" not in script
    assert script.count("sha256-") == 2


def test_columns_hold_each_word_once() -> None:
    packed = pack([{"run": "a", "n": 1}, {"run": "a", "n": None}, {"run": "b"}])
    assert packed["columns"]["run"] == {"words": ["a", "b"], "at": [0, 0, 1]}
    assert packed["columns"]["n"] == [1, None, None]
