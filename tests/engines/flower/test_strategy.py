"""The strategy in an app of one's own, and the client made of one's own train function."""

from collections.abc import Mapping
from typing import cast

import torch
from flwr.app import Context, Message
from torch import nn

from nefl import Aggregate, ClientUpdate, TrainTask, extract, make_family
from nefl.artifacts.checkpoint import state_sha256
from nefl.config import ClientsConfig, FlowerConfig, ServerConfig
from nefl.engines.flower.mailbox import Grid
from nefl.flower import NestedStrategy, nested_client

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
