"""A server step over Flower: the same bits, and its memory stays with the server."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch

import nefl
from nefl import ConfigError, UpdateError, extract, make_family
from nefl.artifacts.checkpoint import state_sha256
from nefl.config import ClientsConfig, FlowerConfig, ServerConfig, StepConfig
from nefl.config.reading import with_settings
from nefl.engines.flower.messages import (
    ARRAYS,
    arrays_to_state,
    from_arrays,
    state_layout,
    state_to_arrays,
)
from nefl.engines.flower.server.mailbox import Grid
from nefl.flower import NestedStrategy, connect_to, nested_client, site_client
from nefl.server.stepping import make_aggregate, remembering
from nefl.server.steps import Momentum, Scaffold
from nefl.state import ClientUpdate, TrainTask

from .conftest import LocalGrid, population
from .test_strategy import train

__all__ = ["Scaffold"]  # by reference below

FAMILY = make_family("resnet8", "nefl-wd", input_shape=(1, 8, 8))
CLIENTS = ClientsConfig(count=5, per_round=5, capability="fixed")
QUICK = FlowerConfig(patience=0.01)


def test_a_memory_arrives_where_it_is_expected() -> None:
    state = remembering(FAMILY.initial_state(3), FAMILY, Momentum())
    back = arrays_to_state(state_to_arrays(state), FAMILY, 0, ["momentum"])
    assert state_sha256(back) == state_sha256(state)
    with pytest.raises(UpdateError, match="its weights come as"):
        arrays_to_state(state_to_arrays(state), FAMILY, 0)
    with pytest.raises(UpdateError, match="lacks memory/momentum"):
        arrays_to_state(state_to_arrays(FAMILY.initial_state(3)), FAMILY, 0, ["momentum"])


@pytest.mark.parametrize("choice", ["server", "client"])
def test_same_bits_as_the_serial_engine_and_no_memory_on_the_way(
    quick: dict[str, Any], tmp_path: Path, choice: str
) -> None:
    settings = with_settings(
        quick,
        {
            "rounds": 2,
            "server.step.name": "momentum",
            "engine.flower": {"choice": choice, "poll": 0.01},
        },
    )
    here = nefl.train(settings, tmp_path / "here")
    grid = LocalGrid(site_client(), population(20))
    there = nefl.train(settings, tmp_path / "there", connect=connect_to(cast("Grid", grid)))
    assert here.summary["state_sha256"] == there.summary["state_sha256"]
    assert there.state.memory
    if choice == "client":
        sent = [m for m in grid.sent if m.metadata.message_type == "train"]
        for message in sent:
            from_arrays(message.content.array_records[ARRAYS], state_layout(there.family))


def by_hand(step: Momentum, rounds: int) -> str:
    state = FAMILY.initial_state(0)
    for number in range(1, rounds + 1):
        total = make_aggregate(state, FAMILY, ServerConfig(), step=step, population=5)
        for submodel in range(5, 0, -1):
            task = TrainTask(number, submodel - 1, submodel)
            model = FAMILY.build(FAMILY.specs[submodel - 1])
            model.load_state_dict(extract(state, FAMILY, submodel))
            examples, metrics = train(model, task, cast("Any", None))
            total.add(ClientUpdate(task, model.state_dict(), examples, metrics))
        state = total.finish()
    return state_sha256(state)


def test_the_strategy_steps_in_flowers_own_loop() -> None:
    torch.set_num_threads(1)
    server = ServerConfig(step=StepConfig("momentum", momentum=0.8))
    strategy = NestedStrategy(FAMILY, CLIENTS, flower=QUICK, server=server)
    grid = LocalGrid(nested_client(FAMILY, train), population(5))
    result = strategy.start(cast("Grid", grid), strategy.initial_arrays(), num_rounds=3, timeout=5)
    found = state_sha256(strategy.state_of(result.arrays, 3))
    assert found == by_hand(Momentum(0.8), 3)
    assert found != by_hand(Momentum(0.0, 1.0), 3)


def test_a_step_that_needs_more_than_weights_is_refused() -> None:
    server = ServerConfig(step=StepConfig(f"{__name__}:Scaffold"))
    with pytest.raises(ConfigError, match="needs control from every client, and they send nothing"):
        NestedStrategy(FAMILY, CLIENTS, server=server)
