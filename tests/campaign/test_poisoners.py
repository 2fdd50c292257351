"""Poisoners, one round of them."""

import pytest

from benchmarks.campaign import poisoners
from benchmarks.campaign.poisoners import ATTACKS, BATCHES, CELLS, DEFENCES, run_cell, table


@pytest.mark.parametrize("attack", ["statistics", "example count"])
def test_a_cell(attack: str) -> None:
    accuracy = run_cell(attack, "mean, norm_limit 3", seed=0, rounds=1)
    assert len(accuracy) == 2


def test_every_cell_has_its_seeds_and_its_place_in_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poisoners, "run_cell", lambda *_, **__: [0.5, 0.75])
    entries = [poisoners.run_batch(number) for number in range(BATCHES)]
    assert len({(e["attack"], e["defence"], e["seed"]) for e in entries}) == 3 * len(CELLS)
    lines = table(entries).splitlines()
    assert len(lines) == 2 + len(ATTACKS)
    assert all(line.count("50.0 / 62.5") == len(DEFENCES) for line in lines[2:])
    assert "–" in table(entries[:1])
