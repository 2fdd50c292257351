"""The campaign's own machinery; its parts have a short version each in the files beside this."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.campaign.__main__ import carry_out
from benchmarks.campaign.journal import Journal


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A part of three batches that notes which of them were run."""
    seen: list[int] = []
    module = ModuleType("benchmarks.campaign.example")

    def run_batch(number: int) -> dict[str, Any]:
        seen.append(number)
        if number == 1 and seen.count(1) == 1:
            raise AssertionError("a promise was broken")
        return {"square": number * number}

    vars(module).update(BATCHES=3, run_batch=run_batch)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return seen


def test_a_campaign_that_was_stopped_goes_on_where_it_was(part: list[int], tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="promise"):
        carry_out("example", tmp_path, None)
    carry_out("example", tmp_path, None)
    assert part == [0, 1, 1, 2]
    entries = Journal(tmp_path / "example.jsonl").entries
    assert {n: entry["square"] for n, entry in entries.items()} == {0: 0, 1: 1, 2: 4}
