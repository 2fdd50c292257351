"""Small first and turns in whole runs: the same bits after a kill, and counted in the identity."""

from pathlib import Path
from typing import Any

import pytest

import nefl
from nefl.config.reading import with_settings
from nefl.errors import RunError
from nefl.rounds import Observer

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
