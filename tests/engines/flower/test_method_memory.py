"""Methods with a memory, sets and members that travel, over a grid in this process."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from flwr.app import RecordDict

import nefl
from nefl.config.reading import with_settings
from nefl.engines.flower.node.context_memory import ContextMemory
from nefl.engines.flower.server.mailbox import Grid
from nefl.flower import connect_to, site_client
from nefl.rounds import Observer

from .conftest import LocalGrid, population

SETTINGS = {
    "rounds": 3,
    "model.ratios": [0.3, 0.6, 1.0],
    "data.train": 60,
    "data.test": 50,
    "clients": {"count": 4, "per_round": 3},
    "server": {"evaluate_every": 3, "checkpoint_every": 1},
}


class Killed(Observer):
    """Ends a run in its second round, as a kill between two updates would."""

    seen = 0

    def task_done(self, done: int, tasks: int) -> None:
        self.seen += 1
        if self.seen == tasks + 2:
            raise KeyboardInterrupt


def sha(result: nefl.RunResult) -> str:
    return str(result.summary["state_sha256"])


@pytest.mark.parametrize("choice", ["server", "client"])
@pytest.mark.parametrize("method", ["scaffold", "within"])
def test_same_bits_as_the_serial_engine_also_after_a_kill(
    quick: dict[str, Any], tmp_path: Path, method: str, choice: str
) -> None:
    quick = with_settings(quick, {**SETTINGS, "model.method": method})
    here = nefl.train(quick, tmp_path / "here")
    there = with_settings(quick, {"engine.flower": {"choice": choice, "poll": 0.01}})
    grid = LocalGrid(site_client(), population(4))
    connect = connect_to(cast("Grid", grid))
    with pytest.raises(KeyboardInterrupt):
        nefl.train(there, tmp_path / "there", observers=[Killed()], connect=connect)
    # What a node kept in the round that was cut off does not count.
    result = nefl.resume(tmp_path / "there", connect=connect)
    assert sha(result) == sha(here)
    assert result.summary["failures"] == 0


def test_a_context_keeps_what_a_checkpoint_could_need() -> None:
    state = RecordDict()

    def keeper(round_number: int, oldest: int) -> ContextMemory:
        return ContextMemory(state, 7, round_number, oldest)

    assert keeper(1, 0).load() is None
    for number, oldest in ((1, 0), (3, 0), (4, 3), (6, 3)):
        keeper(number, oldest).save({"a/shared/w": torch.full((2,), float(number))})
    assert sorted(state) == [f"nefl-memory-7-{number}" for number in (3, 4, 6)]
    found = keeper(5, 3).load()
    assert found is not None
    assert found[0] == 4
    assert found[1]["a/shared/w"].tolist() == [4, 4]
    keeper(4, 3).save({"a/shared/w": torch.zeros(2)})  # the run went back
    assert sorted(state) == [f"nefl-memory-7-{number}" for number in (3, 4)]
    assert ContextMemory(state, 8, 9, 0).load() is None
