"""Methods with a memory, sets and members that travel, over a grid in this process."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from flwr.app import RecordDict

import nefl
from nefl.config.reading import with_settings
from nefl.engines.flower.node.context_memory import ContextMemory
from nefl.engines.flower.server.counted import CountedRounds
from nefl.engines.flower.server.mailbox import Grid
from nefl.flower import connect_to, site_client

from .conftest import Killed, LocalGrid, population

SETTINGS = {
    "rounds": 3,
    "model.ratios": [0.3, 0.6, 1.0],
    "data.train": 60,
    "data.test": 50,
    "clients": {"count": 4, "per_round": 3},
    "server": {
        "evaluate_every": 3,
        "checkpoint_every": 1,
        "quorum": 0.3,
        "average": "refusing:Refusing",
    },
}

REFUSING = """
import nefl

class Refusing(nefl.Aggregate):
    def add(self, update):
        if update.task.round_number == 1 and update.task.client % 2 == 0:
            raise nefl.UpdateError("refused")
        super().add(update)
"""


def sha(result: nefl.RunResult) -> str:
    return str(result.summary["state_sha256"])


@pytest.mark.parametrize("choice", ["server", "client"])
@pytest.mark.parametrize("method", ["scaffold", "within"])
def test_same_bits_as_the_serial_engine_also_after_a_kill(
    quick: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    choice: str,
) -> None:
    (tmp_path / "refusing.py").write_text(REFUSING)
    monkeypatch.syspath_prepend(str(tmp_path))
    quick = with_settings(quick, {**SETTINGS, "model.method": method})
    here = nefl.train(quick, tmp_path / "here")
    there = with_settings(quick, {"engine.flower": {"choice": choice, "poll": 0.01}})
    grid = LocalGrid(site_client(), population(4))
    connect = connect_to(cast("Grid", grid))
    with pytest.raises(KeyboardInterrupt):
        nefl.train(there, tmp_path / "there", observers=[Killed()], connect=connect)
    # What a node kept in the round that was cut off, or of an update that was refused, does not
    # count.
    result = nefl.resume(tmp_path / "there", connect=connect)
    assert sha(result) == sha(here)
    assert result.summary["failures"] == here.summary["failures"] > 0


def test_a_context_keeps_what_counted() -> None:
    state = RecordDict()

    def keeper(round_number: int, *counted: int) -> ContextMemory:
        return ContextMemory(state, 7, round_number, counted)

    assert keeper(1).load() is None
    for number, counted in ((1, ()), (3, (1,)), (4, (1, 3)), (6, (3,)), (7, (3, 6))):
        keeper(number, *counted).save({"a/shared/w": torch.full((2,), float(number))})
    assert sorted(state) == [f"nefl-memory-7-{number}" for number in (3, 6, 7)]
    found = keeper(8, 3, 6).load()  # round 7 did not count for it
    assert found is not None
    assert found[0] == 6
    assert found[1]["a/shared/w"].tolist() == [6, 6]
    assert keeper(8, 3, 5).load() is None  # it was another node then
    assert ContextMemory(state, 8, 9, (6,)).load() is None


def test_the_server_knows_which_rounds_counted() -> None:
    log = [
        {"event": "round", "round": 1, "clients": {"1": [0], "2": [1]}},
        {"event": "round", "round": 2, "clients": {"1": [0, 1]}},
        {"event": "repeated", "round": 3, "clients": {"1": [0]}},
        {"event": "round", "round": 3, "clients": {"1": [1]}},
        {"event": "round", "round": 2, "clients": {"1": [0]}},  # after a kill and a resume
    ]
    oldest = 0
    rounds = CountedRounds(log, lambda: oldest)
    rounds.begin(2)
    assert (rounds.of(0), rounds.of(1), rounds.of(2)) == ((1, 2), (1,), ())
    rounds.settle(3, {0, 2})
    oldest = 2
    rounds.begin(3)
    assert (rounds.of(0), rounds.of(1), rounds.of(2)) == ((2, 3), (1,), (3,))
