"""Rounds that close before all nodes have answered, over a grid in this process."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from flwr.app import Error, Message

import nefl
from nefl.artifacts.checkpoint import state_sha256
from nefl.artifacts.notes import read_log
from nefl.config import ClientsConfig
from nefl.config.reading import config_from, with_settings
from nefl.engines.flower.messages import ARRAYS, WEIGHTS, to_arrays
from nefl.engines.flower.server.mailbox import Grid
from nefl.engines.serial import SerialEngine
from nefl.errors import ConfigError
from nefl.flower import NestedStrategy, connect_to, site_client
from nefl.methods import make_family
from nefl.running.assembly import assemble
from nefl.state import ClientUpdate, TrainTask

from .conftest import LocalGrid, population

Settings = dict[str, Any]


@pytest.fixture
def few(quick: Settings) -> Settings:
    """Settings of a run over six nodes that would wait for an hour."""
    return with_settings(
        quick,
        {
            "rounds": 3,
            "clients": {"count": 6, "per_round": 4, "capability": "fixed"},
            "server": {"evaluate_every": 3, "checkpoint_every": 1},
            "engine.flower": {"patience": 0.2, "poll": 0.01},
        },
    )


def hung(client: int) -> LocalGrid:
    """A grid with one node that takes its first task and is not heard of again."""
    grid = LocalGrid(site_client(), population(6))
    node = next(n for n, c in grid.nodes.items() if c["partition-id"] == client)
    grid.tamper[node] = lambda _reply: None
    return grid


class Lingering(LocalGrid):
    """A grid with one node that answers when all others have, and has been asked a few times more.

    Asked again, the server has taken in what was there before.
    """

    def __init__(self, client: int) -> None:
        super().__init__(site_client(), population(6))
        self._last = next(n for n, c in self.nodes.items() if c["partition-id"] == client)
        self._asks_left = 3

    def _pull(self, message_ids: Iterable[str]) -> list[Message]:
        return super()._pull([number for number in message_ids if not self._too_early(number)])

    def _too_early(self, number: str) -> bool:
        tasks = {
            n: message.metadata.dst_node_id
            for n, message in self._waiting.items()
            if message.metadata.message_type == "train"
        }
        if tasks.get(number) != self._last:
            return False
        if len(tasks) == 1:
            self._asks_left -= 1
        return len(tasks) > 1 or self._asks_left >= 0


def train_on(grid: LocalGrid, settings: Settings, out: Path) -> list[dict[str, Any]]:
    """Train, see that the result is that of what counted, and return the log's rounds."""
    result = nefl.train(settings, out, connect=connect_to(cast("Grid", grid)))
    rounds = [event for event in read_log(out) if event["event"] == "round"]
    assert replayed(settings, rounds) == result.summary["state_sha256"]
    return rounds


def replayed(settings: Settings, rounds: list[dict[str, Any]]) -> str:
    """Add on this machine what counted in each round, in that order, and return its checksum."""
    setting = assemble(config_from(settings))
    engine = SerialEngine(setting.site(), setting.family)
    state = setting.family.initial_state(setting.config.seed)
    for event in rounds:
        number = event["round"]
        by_client = {c: int(k) for k, some in event["clients"].items() for c in some}
        tasks = [TrainTask(number, c, k) for c, k in by_client.items()]
        tasks.sort(key=lambda task: (-task.submodel, task.client))
        if event["order"]:
            tasks.sort(key=lambda task: event["order"].index(task.client))
        total = nefl.Aggregate(state, setting.family)
        for result in engine.train(state, tasks):
            assert isinstance(result, ClientUpdate)
            total.add(result)
        state = total.finish()
    return state_sha256(state)


def test_a_node_that_hangs_holds_no_round_and_is_asked_no_more(
    few: Settings, tmp_path: Path
) -> None:
    settings = with_settings(few, {"clients.over_select": 1.5})
    first, *others = train_on(hung(4), settings, tmp_path / "run")
    assert (first["tasks"], first["wanted"], sum(first["trained"].values())) == (6, 4, 4)
    assert not first["failures"]
    late = {each["client"]: each["reason"] for each in first["discarded"]}
    assert "client 4" in late[4]
    assert "before its reply came" in late[4]
    assert sum(tier["discarded"] for tier in first["tiers"].values()) == 2
    for event in others:  # it still owes its first reply, as the other of the two may
        assert 4 <= event["tasks"] <= 5
        assert sum(event["trained"].values()) == 4
        assert 4 not in [each["client"] for each in event["discarded"]]


def test_updates_are_added_as_they_come_and_the_log_has_their_order(
    few: Settings, tmp_path: Path
) -> None:
    settings = with_settings(few, {"rounds": 1, "clients.over_select": 1.5, "clients.hold": 1e6})
    grid = Lingering(5)
    [event] = train_on(grid, settings, tmp_path / "run")  # which replays that order
    assert event["order"][-1] == 5  # its submodel is the largest, whose place was kept
    assert len(event["order"]) == 4
    assert not event["failures"]


def test_an_update_that_is_refused_takes_no_place(few: Settings, tmp_path: Path) -> None:
    changes = {"rounds": 1, "clients.over_select": 1.5, "clients.hold": 1e6}
    grid = LocalGrid(site_client(), population(6))
    node = next(n for n, c in grid.nodes.items() if c["partition-id"] == 5)

    def spoil(reply: Message) -> Message:
        tensors = safetensors.torch.load(reply.content.array_records[ARRAYS][WEIGHTS].data)
        tensors["fc.bias"].fill_(torch.nan)
        reply.content[ARRAYS] = to_arrays(tensors)
        return reply

    grid.tamper[node] = spoil
    [event] = train_on(grid, with_settings(few, changes), tmp_path / "run")
    assert sum(event["trained"].values()) == event["wanted"] == 4
    [failure] = event["failures"]
    assert failure["client"] == 5
    assert "fc.bias has values that are not finite" in failure["reason"]


def test_a_soft_deadline_closes_with_a_quorum(few: Settings, tmp_path: Path) -> None:
    settings = with_settings(few, {"rounds": 1, "clients.per_round": 6, "clients.close_after": 1.0})
    [event] = train_on(hung(0), settings, tmp_path / "run")
    assert sum(event["trained"].values()) >= 3
    assert 0 in [each["client"] for each in event["discarded"]]
    assert not event["failures"]


def test_without_a_quorum_the_hard_deadline_ends_it(few: Settings, tmp_path: Path) -> None:
    grid = LocalGrid(site_client(), population(6))
    grid.tamper = dict.fromkeys(list(grid.nodes)[:4], lambda _reply: None)
    settings = with_settings(
        few,
        {
            "clients.per_round": 6,
            "clients.close_after": 0.1,
            "server.quorum": 0.5,
            "server.attempts": 1,
            "engine.flower.deadline": 3.0,
        },
    )
    with pytest.raises(nefl.RunError, match="only 2 of 6 updates counted"):
        train_on(grid, settings, tmp_path / "run")
    [event] = [e for e in read_log(tmp_path / "run") if e["event"] == "repeated"]
    assert len(event["failures"]) == 4
    assert all("no reply within 3 s" in each["reason"] for each in event["failures"])
    assert not event["discarded"]


def test_a_failing_node_waits_and_is_taken_back_when_it_returns(
    few: Settings, tmp_path: Path
) -> None:
    """It fails in the first round, would be passed over in the next two, and is restarted."""
    settings = with_settings(
        few, {"clients.per_round": 6, "clients.pause": 2, "engine.flower.deadline": 30.0}
    )
    grid = LocalGrid(site_client(), population(6))
    node = next(n for n, c in grid.nodes.items() if c["partition-id"] == 3)

    def broken(reply: Message) -> Message:
        reply.metadata.__dict__["_src_node_id"] = 5
        return reply

    class Restart(nefl.Observer):
        def round_done(self, state: nefl.ServerState, *_: object) -> None:
            if state.round_number == 2:
                grid.nodes[node + 1] = grid.nodes.pop(node)

    grid.tamper[node] = broken
    nefl.train(
        settings,
        tmp_path / "run",
        observers=[Restart()],
        connect=connect_to(cast("Grid", grid)),
    )
    first, second, third = [e for e in read_log(tmp_path / "run") if e["event"] == "round"]
    assert [each["client"] for each in first["failures"]] == [3]
    assert (second["tasks"], third["tasks"]) == (5, 6)
    assert not second["failures"] + third["failures"]


def test_a_late_reply_that_is_an_error_is_a_failure(few: Settings, tmp_path: Path) -> None:
    """It hangs in every round; of the first, Flower says later that it failed."""
    grid = hung(4)

    class Told(nefl.Observer):
        def round_done(self, state: nefl.ServerState, *_: object) -> None:
            if state.round_number == 1:
                [task] = [
                    message
                    for message in grid.sent
                    if message.metadata.message_type == "train"
                    and message.metadata.dst_node_id in grid.tamper
                ]
                error = Error(code=5, reason="node unavailable")
                grid.held[task.metadata.message_id] = Message(error, reply_to=task)

    result = nefl.train(
        with_settings(few, {"clients.over_select": 1.5, "clients.pause": 3}),
        tmp_path / "run",
        observers=[Told()],
        connect=connect_to(cast("Grid", grid)),
    )
    [late] = [e for e in read_log(tmp_path / "run") if e["event"] == "late" and e["client"] == 4]
    assert "error: node unavailable" in late["reason"]
    assert result.state.ledger["failed"].tolist() == [0, 0, 0, 0, 1, 0]
    assert result.state.ledger["until"][4] == 5


def test_the_strategy_says_what_it_cannot_do() -> None:
    family = make_family("resnet8", "nefl-w", input_shape=(1, 8, 8))
    clients = ClientsConfig(count=5, per_round=2, over_select=1.5)
    with pytest.raises(ConfigError, match=r"clients\.over_select.*nefl\.flower\.serve"):
        NestedStrategy(family, clients)
