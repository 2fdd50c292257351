"""A short version of the campaign's kills; `benchmarks/campaign/kills.py` has the whole."""

import subprocess
import sys
from pathlib import Path

import pytest

SHORT = {
    "serial": "kills.kill_runs('serial', 0, 4)",
    "full disk": "hardships.full_disk(draw, 1)",
    "read-only folder": "hardships.read_only(draw, 1)",
    "clock set back": "hardships.clock_set_back(draw, 1)",
    "two resumes at once": "hardships.two_at_once(draw, 1)",
}


@pytest.mark.long
def test_every_engine_survives_kills_and_hardships() -> None:
    # A process of its own: it forks, and nothing may have trained in it before.
    lines = ["import random", "from benchmarks.campaign import hardships, kills"]
    lines += ["draw = random.Random(3)", *(f"print({call})" for call in SHORT.values())]
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "'kills': 4" in result.stdout
    assert result.stdout.count("to the same") + result.stdout.count("the same;") == 4


def test_the_table_counts_kills_by_what_was_hit() -> None:
    from benchmarks.campaign import kills

    hits = {"server": 3, "worker": 1}
    entries = [
        {"batch": 0, "engine": "workers", "runs": 2, "kills": 4, "hits": hits, "seconds": 1},
        {"batch": 1, "engine": "workers", "runs": 1, "kills": 3, "hits": {"server": 3}},
        {"batch": 50, "hardship": "full disk", "times": 2, "outcome": "resumed to the same"},
    ]
    table = kills.table(entries)
    assert "| server | 6 |" in table
    assert "| **all** | **7** |" in table
    assert "| full disk | 2 | resumed to the same |" in table
