"""Clients' memory in a run's folder: what belongs to a checkpoint is there, and little else."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import nefl
from nefl.artifacts.kept import FOLDER, MEMORY
from nefl.artifacts.runfolder import RunFolder
from nefl.config.reading import with_settings
from nefl.engines.memory_files import MemoryFiles
from nefl.errors import RunError
from nefl.rounds import Engine, Observer
from nefl.running.assembly import Setting
from nefl.state import ClientFailure, ClientUpdate, ServerState, TrainTask

SETTINGS = {
    "rounds": 4,
    "model.method": "scaffold",
    "model.ratios": [0.3, 0.6, 1.0],
    "data.train": 60,
    "data.test": 50,
    "clients": {"count": 4, "per_round": 2},
    "server": {"evaluate_every": 4, "checkpoint_every": 2, "keep": 2},
}


@pytest.fixture
def small(quick: dict[str, Any]) -> dict[str, Any]:
    return with_settings(quick, SETTINGS)


def sha(result: nefl.RunResult) -> str:
    return str(result.summary["state_sha256"])


def files(run: Path) -> set[tuple[int, int]]:
    names = (path.name.split("-") for path in (run / MEMORY).glob("*.safetensors"))
    return {(int(name[1]), int(name[3].partition(".")[0])) for name in names}


class Killed(Observer):
    """Ends a run in its fourth round, as a kill between two updates would."""

    seen = 0

    def task_done(self, done: int, tasks: int) -> None:
        self.seen += 1
        if self.seen == 3 * tasks + 1:
            raise KeyboardInterrupt


class Unreached:
    """An engine that never reaches clients with an even number in the second round."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner
        self.settle, self.evaluate, self.close = inner.settle, inner.evaluate, inner.close

    def train(
        self, state: ServerState, tasks: Sequence[TrainTask]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        reached = [t for t in tasks if t.round_number != 2 or t.client % 2]
        yield from (ClientFailure(task, "unreached") for task in tasks if task not in reached)
        yield from self._inner.train(state, reached)


REFUSING = """
import nefl

class Refusing(nefl.Aggregate):
    def add(self, update):
        if update.task.round_number == 2 and update.task.client % 2 == 0:
            raise nefl.UpdateError("refused")
        super().add(update)
"""


@pytest.mark.long
def test_memory_is_kept_where_an_update_counted_in_workers_and_after_a_kill(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(setting: Setting, folder: RunFolder) -> tuple[Setting, Engine]:
        return setting, Unreached(setting.engine(folder.partition))

    small = with_settings(small, {"clients.per_round": 3, "server.quorum": 0.3})
    serial = nefl.train(small, tmp_path / "serial", connect=connect)
    assert serial.summary["failures"] > 0
    (tmp_path / "refusing_evens.py").write_text(REFUSING)
    monkeypatch.syspath_prepend(str(tmp_path))
    workers = with_settings(
        small,
        {
            "engine.name": "workers",
            "engine.workers": 2,
            "server.average": "refusing_evens:Refusing",
        },
    )
    with pytest.raises(KeyboardInterrupt):
        nefl.train(workers, tmp_path / "workers", observers=[Killed()])
    newest = tmp_path / "workers" / FOLDER / "round-0000003.safetensors"
    newest.unlink()  # a real kill leaves no checkpoint of the round before
    resumed = nefl.resume(tmp_path / "workers")
    assert sha(resumed) == sha(serial)
    assert files(resumed.path) == files(serial.path)


class SecondRoundFails:
    """An engine whose first attempt at the second round brings nothing, though clients train."""

    def __init__(self, inner: Engine) -> None:
        self._inner, self._calls = inner, 0
        self.settle, self.evaluate, self.close = inner.settle, inner.evaluate, inner.close

    def train(
        self, state: ServerState, tasks: Sequence[TrainTask]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        self._calls += 1
        lost = self._calls == 2
        for result in self._inner.train(state, tasks):
            yield ClientFailure(result.task, "lost on its way") if lost else result


def test_what_clients_kept_in_a_round_that_does_not_count_is_dropped(
    small: dict[str, Any], tmp_path: Path
) -> None:
    def connect(setting: Setting, folder: RunFolder) -> tuple[Setting, Engine]:
        return setting, SecondRoundFails(setting.engine(folder.partition))

    run = nefl.train(small | {"rounds": 2}, tmp_path / "run", connect=connect).path
    log = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any(event["event"] == "repeated" for event in log)
    rounds = {event["round"]: event for event in log if event["event"] == "round"}
    trained = {client for group in rounds[2]["clients"].values() for client in group}
    assert {client for client, number in files(run) if number == 2} == trained


def test_files_are_bounded_by_what_checkpoints_need(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "round-0000006.safetensors").touch()
    memories = MemoryFiles(tmp_path)
    memories.begin(0)
    for client, number in ((0, 1), (0, 5), (0, 6), (0, 8), (1, 2), (1, 7), (2, 3)):
        memories.keeper(client, number).save({"a": torch.full((1,), float(number))})
    (tmp_path / MEMORY / ".client-0000000-round-0000009.safetensors.abc.part").mkdir()
    memories.begin(7)
    assert files(tmp_path) == {(0, 6), (1, 2), (1, 7), (2, 3)}
    assert len(list((tmp_path / MEMORY).iterdir())) == 4
    assert [memories.last_round(client) for client in range(4)] == [6, 7, 3, None]
    found = memories.keeper(1, 8).load()
    assert found is not None
    assert (found[0], found[1]["a"].tolist()) == (7, [7.0])
    assert memories.keeper(3, 8).load() is None
    (tmp_path / MEMORY / "client-0000002-round-0000003.safetensors").write_bytes(b"x")
    with pytest.raises(RunError, match=r"client-0000002-round-0000003.*damaged"):
        memories.keeper(2, 8).load()


def test_a_method_without_memory_leaves_no_folder(small: dict[str, Any], tmp_path: Path) -> None:
    plain = with_settings(small, {"model.method": "nefl-wd", "rounds": 1})
    assert not (nefl.train(plain, tmp_path / "run").path / MEMORY).exists()
