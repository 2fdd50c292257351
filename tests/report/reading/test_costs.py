"""Who trained what is found again, from the log or from the seed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nefl.report.reading.costs import assignments, client_sizes, costs_of, macs_by_round
from nefl.report.reading.rebuilt import profiles_again
from nefl.report.reading.runs import Run, read_run
from nefl.running.lifecycle import train
from tests.report.conftest import MakeRun

DEVICES = [
    {"name": "small", "memory": 3e5, "macs_per_second": 1e7, "bandwidth": 1e5},
    {"name": "large", "memory": 1e9, "macs_per_second": 1e9, "bandwidth": 1e6},
]


def without_clients(run: Run) -> Run:
    return replace(run, rounds=tuple(replace(entry, clients={}) for entry in run.rounds))


@pytest.mark.parametrize("capability", ["tiers", "devices"])
def test_cohorts_of_an_older_log_are_drawn_again(
    capability: str, quick: dict[str, Any], tmp_path: Path
) -> None:
    quick["rounds"] = 2
    quick["clients"] |= {"capability": capability}
    if capability == "devices":
        quick["clients"] |= {"devices": DEVICES}
    train(quick, tmp_path / "run")
    run = read_run(tmp_path / "run")
    costs, sizes = costs_of(run), client_sizes(run)
    logged = [dict(entry.clients) for entry in run.rounds]
    assert all(logged)
    assert assignments(without_clients(run), costs, sizes) == logged
    assert macs_by_round(without_clients(run), costs) == macs_by_round(run, costs)


def test_a_cohort_that_contradicts_the_log_is_not_believed(make_run: MakeRun) -> None:
    run = read_run(make_run("strange", [[0.1] * 5]))
    costs = costs_of(run)
    run = replace(run, rounds=tuple(replace(e, trained={5: 2}, clients={}) for e in run.rounds))
    assert assignments(run, costs, client_sizes(run)) is None
    # then every client counts with the mean of 25 examples
    assert macs_by_round(run, costs) == [3 * 5 * costs.profiles[4].macs_total * 2 * 25]


@pytest.mark.parametrize("key", ["model.name", "model.method"])
def test_user_code_is_not_imported_for_a_look(
    key: str, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    run = read_run(make_run("own", [[0.1]], settings={key: "evil_code:build"}))
    (tmp_path / "evil_code.py").write_text("raise SystemExit('imported')")
    costs = costs_of(run)
    assert not costs.profiles
    assert "of the user's own" in costs.unknown
    assert assignments(without_clients(run), costs, client_sizes(run)) is None


def test_a_family_built_differently_now_is_not_priced(make_run: MakeRun) -> None:
    folder = make_run("other", [[0.1] * 5])
    (folder / "identity.json").write_text('{"model": "0000"}')
    assert "another family" in costs_of(read_run(folder)).unknown


def test_what_a_run_noted_is_its_price(quick: dict[str, Any], tmp_path: Path) -> None:
    train(quick | {"rounds": 1}, tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert costs_of(run).profiles == profiles_again(run)
    # also where nothing can be built again: a later nefl, another model
    later = replace(run, config=None, fingerprint="0000")
    assert costs_of(later) == costs_of(run)
    older = replace(run, facts=None)
    assert costs_of(older) == costs_of(run)
