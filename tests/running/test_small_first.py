"""Small first and turns in whole runs: the same bits after a kill, and counted in the identity."""

import json
from pathlib import Path
from typing import Any

import pytest

import nefl
from nefl.config.reading import config_from, with_settings
from nefl.errors import RunError
from nefl.estimate import estimate_run
from nefl.rounds import Observer
from nefl.running.small_first import with_small_first

RULES = {"clients.small_first": [1, 3], "clients.choice": "turns", "rounds": 3}


class Killed(Observer):
    """Ends a run when the second round is done."""

    def round_done(self, state: Any, *_: object) -> None:
        if state.round_number == 2:
            raise KeyboardInterrupt


def test_a_killed_run_unlocks_as_one_that_was_not(quick: dict[str, Any], tmp_path: Path) -> None:
    settings = with_settings(quick, {**RULES, "server.checkpoint_every": 1})
    whole = nefl.train(settings, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        nefl.train(settings, tmp_path / "part", observers=[Killed()])
    rest = nefl.resume(tmp_path / "part")
    assert rest.summary["state_sha256"] == whole.summary["state_sha256"]
    trained = [set(entry.trained) for entry in nefl.read_run(tmp_path / "whole").rounds]
    full = len(whole.family)
    assert trained[0] == {1}
    assert max(trained[1]) < full
    assert max(trained[2]) == full


def test_a_run_does_not_go_on_by_another_rule(quick: dict[str, Any], tmp_path: Path) -> None:
    settings = with_settings(quick, RULES | {"server.checkpoint_every": 1})
    with pytest.raises(KeyboardInterrupt):
        nefl.train(settings, tmp_path / "run", observers=[Killed()])
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"turns"', '"drawn"'))
    with pytest.raises(RunError, match="settings"):
        nefl.resume(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model.method": "fedrolex"}, "with fedrolex other channels"),
        ({"model.method": "exclusive"}, "with exclusive there is one model"),
        ({"model.start": "elsewhere"}, "bring trained weights for all submodels"),
        ({"model.weights": "full.safetensors"}, "bring trained weights for all submodels"),
        ({"engine.flower.choice": "client"}, "lets nodes train what is not unlocked"),
    ],
)
def test_nothing_is_unlocked_that_is_not_new(
    quick: dict[str, Any], tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    settings = with_settings(quick, RULES | change)
    with pytest.raises(nefl.ConfigError, match=f"small_first: .*{reason}"):
        nefl.train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def unlocking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A method of one's own that unlocks its submodels between a quarter and half of the rounds."""
    (tmp_path / "unlocking.py").write_text(
        'import nefl\nmethod = nefl.Method("both", learned_steps=True, small_first=(0.25, 0.5))\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "unlocking:method"


def test_a_method_may_unlock_by_itself(
    quick: dict[str, Any], tmp_path: Path, unlocking: str
) -> None:
    """In rounds that its run's settings say from then on."""
    settings = with_settings(quick, {"model.method": unlocking, "rounds": 8})
    result = nefl.train(settings, tmp_path / "own")
    run = nefl.read_run(tmp_path / "own")
    assert run.settings["clients.small_first"] == [2, 4]
    largest = [max(entry.trained) for entry in run.rounds]
    assert largest[:2] == [1, 1]
    assert largest[2] < len(result.family)
    plain = with_settings(settings, {"model.method": "nefl-wd", "clients.small_first": [2, 4]})
    asked = nefl.train(plain, tmp_path / "asked").summary
    assert asked["state_sha256"] == result.summary["state_sha256"]
    cost = estimate_run(config_from(settings), timed=False)
    assert cost.total_macs == sum(entry.macs or 0 for entry in run.rounds)


def test_what_is_asked_for_stands_above_the_method(
    quick: dict[str, Any], tmp_path: Path, unlocking: str
) -> None:
    ways: tuple[dict[str, Any], ...] = (
        {"model.method": unlocking, "clients.small_first": [0, 1]},
        {"model.method": "nefl-wd"},
    )
    sums = {
        nefl.train(with_settings(quick, {**way, "rounds": 2}), tmp_path / str(k)).summary[
            "state_sha256"
        ]
        for k, way in enumerate(ways)
    }
    assert len(sums) == 1, "0 and 1 unlock all from the first round on"


@pytest.mark.parametrize(("rounds", "unlocked"), [(1, (0, 1)), (2, (0, 1)), (10, (2, 5))])
def test_shares_of_few_rounds_are_rounds_too(
    unlocking: str, rounds: int, unlocked: tuple[int, int]
) -> None:
    config = config_from({"rounds": rounds, "model": {"method": unlocking}})
    assert with_small_first(config).clients.small_first == unlocked


def test_a_run_of_an_older_method_does_not_go_on_by_another_rule(
    quick: dict[str, Any], tmp_path: Path, unlocking: str
) -> None:
    settings = with_settings(quick, {"model.method": unlocking, "rounds": 4})
    with pytest.raises(KeyboardInterrupt):
        nefl.train(settings, tmp_path / "run", observers=[Killed()])
    config = tmp_path / "run" / "config.json"
    changed = json.loads(config.read_text())
    changed["clients"]["small_first"] = None
    config.write_text(json.dumps(changed))
    with pytest.raises(RunError, match=r"before unlocking:method unlocked its submodels in turn"):
        nefl.resume(tmp_path / "run")


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.2, 1.5), (-0.1, 0.5)])
def test_shares_rise_within_the_run(shares: tuple[float, float]) -> None:
    with pytest.raises(nefl.ConfigError, match="give two rising shares of the rounds"):
        nefl.Method("both", small_first=shares)
