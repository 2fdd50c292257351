"""The strategy in an app of one's own, and the client made of one's own train function."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message
from torch import nn

from nefl import (
    Aggregate,
    ClientUpdate,
    ConfigError,
    NestingError,
    TrainTask,
    extract,
    make_family,
)
from nefl.artifacts.checkpoint import state_sha256
from nefl.config import ClientsConfig, DeviceConfig, FlowerConfig, ServerConfig
from nefl.engines.flower.messages import read_order
from nefl.engines.flower.node.answering import Train
from nefl.engines.flower.server.mailbox import Grid
from nefl.flower import NestedStrategy, nested_client
from nefl.nesting.profile import profile_family
from nefl.nesting.rolling import roll
from nefl.nesting.signature import Signature

from .conftest import LocalGrid, population

FAMILY = make_family("resnet8", "nefl-wd", input_shape=(1, 8, 8))
CLIENTS = ClientsConfig(count=5, per_round=5, capability="fixed")
QUICK = FlowerConfig(patience=0.01)


def train(model: nn.Module, task: TrainTask, _context: Context) -> tuple[int, Mapping[str, float]]:
    """A function as a Flower user has it: one step on some examples."""
    generator = torch.Generator().manual_seed(task.client)
    images = torch.rand(8, 1, 8, 8, generator=generator)
    labels = torch.randint(10, (8,), generator=generator)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.functional.cross_entropy(model(images), labels)
    torch.autograd.backward(loss)
    optimiser.step()
    return 8, {"train_loss": float(loss.detach())}


def measure(model: nn.Module, task: TrainTask, context: Context) -> tuple[int, Mapping[str, float]]:
    return 10, {"accuracy": task.submodel / 10}


def start(strategy: NestedStrategy, grid: LocalGrid, rounds: int = 2) -> str:
    result = strategy.start(
        cast("Grid", grid), strategy.initial_arrays(), num_rounds=rounds, timeout=5
    )
    return state_sha256(strategy.state_of(result.arrays, rounds))


def by_hand(rounds: int) -> str:
    state = FAMILY.initial_state(0)
    for number in range(1, rounds + 1):
        total = Aggregate(state, FAMILY)
        for submodel in range(5, 0, -1):
            task = TrainTask(number, submodel - 1, submodel)
            model = FAMILY.build(FAMILY.specs[submodel - 1])
            model.load_state_dict(extract(state, FAMILY, submodel))
            examples, metrics = train(model, task, cast("Context", None))
            total.add(ClientUpdate(task, model.state_dict(), examples, metrics))
        state = total.finish()
    return state_sha256(state)


def test_flowers_own_loop_gives_what_the_averages_by_hand_give() -> None:
    torch.set_num_threads(1)
    grid = LocalGrid(nested_client(lambda: FAMILY, train), population(5))
    assert start(NestedStrategy(FAMILY, CLIENTS, flower=QUICK), grid) == by_hand(2)
    choosing = FlowerConfig(patience=0.01, choice="client")
    grid = LocalGrid(nested_client(FAMILY, train), population(5))
    assert start(NestedStrategy(FAMILY, CLIENTS, flower=choosing), grid) == by_hand(2)


def test_failures_cost_their_update_and_too_few_leave_the_weights() -> None:
    def spoil(reply: Message) -> Message:
        reply.content = type(reply.content)()
        return reply

    grid = LocalGrid(nested_client(FAMILY, train), population(5))
    nodes = list(grid.nodes)
    grid.tamper = dict.fromkeys(nodes[:2], spoil)
    strategy = NestedStrategy(FAMILY, CLIENTS, flower=QUICK, server=ServerConfig(quorum=0.6))
    first = strategy.initial_arrays()
    result = strategy.start(cast("Grid", grid), first, num_rounds=1)
    assert dict(result.train_metrics_clientapp[1])["failures"] == 2
    assert len(result.arrays) == len(first)
    grid.tamper = dict.fromkeys(nodes[:3], spoil)
    result = strategy.start(cast("Grid", grid), first, num_rounds=1)
    assert not result.arrays


def test_a_wish_for_a_smaller_submodel_is_granted_the_next_round() -> None:
    grid = LocalGrid(nested_client(FAMILY, train, choose=lambda *_: 1), population(5))
    strategy = NestedStrategy(FAMILY, CLIENTS, flower=QUICK, server=ServerConfig(quorum=0.1))
    result = strategy.start(cast("Grid", grid), strategy.initial_arrays(), num_rounds=2)
    updates = [dict(m)["updates"] for m in result.train_metrics_clientapp.values()]
    assert updates == [1, 5]


def test_evaluation_on_the_nodes() -> None:
    grid = LocalGrid(nested_client(FAMILY, train, evaluate=measure), population(5))
    strategy = NestedStrategy(FAMILY, CLIENTS, flower=QUICK, evaluate=True)
    result = strategy.start(cast("Grid", grid), strategy.initial_arrays(), num_rounds=1)
    assert dict(result.evaluate_metrics_clientapp[1]) == {"accuracy": 0.5}


def test_another_model_on_the_client_is_refused() -> None:
    other = make_family("resnet8", "nefl-w", input_shape=(1, 8, 8))
    grid = LocalGrid(nested_client(other, train), population(5))
    strategy = NestedStrategy(FAMILY, CLIENTS, flower=QUICK)
    result = strategy.start(cast("Grid", grid), strategy.initial_arrays(), num_rounds=1)
    assert dict(result.train_metrics_clientapp[1]) == {"updates": 0, "failures": 5}


def test_an_average_that_is_not_finite_leaves_the_weights() -> None:
    def huge(model: nn.Module, task: TrainTask, context: Context) -> tuple[int, dict[str, float]]:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(3e38)
        return 8, {}

    grid = LocalGrid(nested_client(FAMILY, huge), population(5))
    strategy = NestedStrategy(FAMILY, CLIENTS, flower=QUICK)
    result = strategy.start(cast("Grid", grid), strategy.initial_arrays(), num_rounds=1)
    assert dict(result.train_metrics_clientapp[1]) == {"updates": 5, "failures": 0}
    assert not result.arrays


def test_a_claim_of_examples_is_capped() -> None:
    def bragging(
        model: nn.Module, task: TrainTask, context: Context
    ) -> tuple[int, dict[str, float]]:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1000.0 if task.client == 0 else 0.0)
        return 10**9 if task.client == 0 else 10, {}

    grid = LocalGrid(nested_client(FAMILY, bragging), population(5))
    server = ServerConfig(weighting="examples", examples_limit=1.0)
    strategy = NestedStrategy(FAMILY, CLIENTS, flower=QUICK, server=server)
    result = strategy.start(cast("Grid", grid), strategy.initial_arrays(), num_rounds=1)
    bias = strategy.state_of(result.arrays, 1).shared["fc.bias"]
    torch.testing.assert_close(bias, torch.full((10,), 200.0))


def test_the_train_function_sees_the_rounds_configuration() -> None:
    seen: list[dict[str, object]] = []

    def with_rate(
        model: nn.Module, task: TrainTask, context: Context, config: ConfigRecord
    ) -> tuple[int, Mapping[str, float]]:
        seen.append(dict(config))
        return train(model, task, context)

    grid = LocalGrid(nested_client(FAMILY, with_rate), population(5))
    strategy = NestedStrategy(FAMILY, CLIENTS, flower=QUICK)
    strategy.start(
        cast("Grid", grid),
        strategy.initial_arrays(),
        num_rounds=2,
        train_config=ConfigRecord({"lr": 0.25}),
    )
    assert seen == [{"lr": 0.25, "server-round": n} for n in (1, 2) for _ in range(5)]


def test_a_train_function_with_other_arguments_is_refused_at_once() -> None:
    def old(model: nn.Module, task: TrainTask) -> tuple[int, Mapping[str, float]]:
        return 1, {}

    with pytest.raises(ConfigError, match=r"write it as old\(model, task, context, config\)"):
        nested_client(FAMILY, cast("Train", old))


def test_rolling_windows_move_as_they_do_on_one_machine() -> None:
    family = make_family("resnet8", "fedrolex", input_shape=(1, 8, 8))
    grid = LocalGrid(nested_client(family, train), population(5))
    strategy = NestedStrategy(family, CLIENTS, flower=QUICK, rolling=True)
    by_flower = strategy.start(cast("Grid", grid), strategy.initial_arrays(), num_rounds=2)
    state = family.initial_state(0)
    for number in (1, 2):
        state = roll(state, family)
        total = Aggregate(state, family)
        for submodel in range(5, 0, -1):
            task = TrainTask(number, submodel - 1, submodel)
            model = family.build(family.specs[submodel - 1])
            model.load_state_dict(extract(state, family, submodel))
            examples, metrics = train(model, task, cast("Context", None))
            total.add(ClientUpdate(task, model.state_dict(), examples, metrics))
        state = total.finish()
    assert state_sha256(strategy.state_of(by_flower.arrays, 2)) == state_sha256(state)
    with pytest.raises(NestingError, match="keep tensors of their own"):
        NestedStrategy(FAMILY, CLIENTS, rolling=True)


def test_simulated_devices_decide_and_need_what_they_rest_on(tmp_path: Path) -> None:
    profiles = profile_family(FAMILY, Signature((1, 8, 8), 10), 8)
    device = DeviceConfig("phone", profiles[1].train_memory_bytes * 1.1, 1e12, 1e12)
    clients = ClientsConfig(5, 5, "devices", devices=(device,), fluctuation=0.0)
    grid = LocalGrid(nested_client(FAMILY, train), population(5))
    strategy = NestedStrategy(FAMILY, clients, flower=QUICK, profiles=profiles, examples=[8] * 5)
    strategy.start(cast("Grid", grid), strategy.initial_arrays(), num_rounds=1)
    trained = [m for m in grid.sent if m.metadata.message_type == "train"]
    assert [read_order(m.content).task.submodel for m in trained] == [2] * 5
    with pytest.raises(ConfigError, match="give NestedStrategy profiles="):
        NestedStrategy(FAMILY, clients)
    with pytest.raises(ConfigError, match="family: its submodels train others inside them"):
        NestedStrategy(make_family("resnet8", "within", input_shape=(1, 8, 8)), CLIENTS)
    with pytest.raises(ConfigError, match=r"engine\.flower\.measure"):
        NestedStrategy(FAMILY, CLIENTS, flower=FlowerConfig(measure=True))
    registry = tmp_path / "nodes.toml"
    registry.write_text("[default]\nmemory = 1e9\n")
    listed = NestedStrategy(FAMILY, CLIENTS, flower=FlowerConfig(registry=str(registry)))
    with pytest.raises(ConfigError, match="say nothing without the submodels' costs"):
        listed.start(cast("Grid", grid), listed.initial_arrays(), num_rounds=1)
