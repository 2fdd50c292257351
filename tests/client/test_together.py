from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nefl.artifacts.checkpoint import state_sha256
from nefl.client.together import groups_of
from nefl.config.reading import config_from, with_settings
from nefl.engines.serial import SerialEngine
from nefl.engines.stacking import check_together
from nefl.errors import ConfigError
from nefl.nesting.spec import Family, SubmodelSpec, kept_channels
from nefl.running.assembly import assemble
from nefl.running.lifecycle import train
from nefl.state import ClientUpdate, TrainTask


def test_neighbours_that_are_alike_are_trained_at_once() -> None:
    tasks = [TrainTask(1, client, submodel) for client, submodel in enumerate((3, 3, 3, 2, 2, 3))]
    sizes = np.array([8, 8, 8, 8, 9, 8])
    clients = [[t.client for t in group] for group in groups_of(tasks, sizes, 2)]
    assert clients == [[0, 1], [2], [3], [4], [5]]
    assert groups_of(tasks, sizes, 1) == [(task,) for task in tasks]


@pytest.mark.parametrize(
    "changes",
    [
        {"model.method": "nefl-wd", "local.momentum": 0.9, "local.weight_decay": 1e-3},
        {"model.method": "heterofl", "local.clip_norm": 0.5},
        {"model.name": "vit_tiny", "local.learning_rate": 0.01},
    ],
)
def test_clients_at_once_are_as_one_by_one(quick: dict[str, Any], changes: dict[str, Any]) -> None:
    """But for the last bits: statistics of norms, gradients and clipping are each client's own."""
    setting = assemble(config_from(with_settings(quick, {"local.epochs": 2, **changes})))
    site, family = setting.site(), setting.family
    state = setting.initial_state()
    tasks = [TrainTask(1, client, 2) for client in range(3)]

    def updates(together: int) -> list[dict[str, torch.Tensor]]:
        found = []
        for update in SerialEngine(site, family, together=together).train(state, tasks):
            assert isinstance(update, ClientUpdate), update
            loss = torch.tensor([update.metrics["loss"], float(update.examples)])
            found.append({n: t.clone() for n, t in update.trained.items()} | {"loss": loss})
        return found

    alone, at_once = updates(1), updates(3)
    assert not torch.equal(alone[0]["loss"], alone[1]["loss"])
    for one, other in zip(alone, at_once, strict=True):
        assert one.keys() == other.keys()
        for name, tensor in one.items():
            torch.testing.assert_close(other[name], tensor, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.usefixtures("forked_workers")
def test_clients_at_once_are_the_same_on_all_engines(quick: dict[str, Any], tmp_path: Any) -> None:
    engines: list[dict[str, Any]] = [{"name": "serial"}, {"name": "workers", "workers": 2}]
    sums = []
    for number, engine in enumerate(engines):
        config = quick | {"rounds": 1, "engine": engine | {"devices": "cpu", "together": 2}}
        sums.append(state_sha256(train(config, tmp_path / f"{number}").state))
    assert sums[0] == sums[1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model.method": "fedprox"}, "follows Proximal"),
        ({"local.precision": "bf16"}, "stacks are in float32"),
        ({"local.compile": True}, "not compiled"),
    ],
)
def test_what_cannot_be_stacked_is_refused(
    quick: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    config = config_from(with_settings(quick, {"engine.together": 2, **changes}))
    with pytest.raises(ConfigError, match=reason):
        assemble(config)


def test_a_model_with_random_numbers_of_its_own_is_refused(quick: dict[str, Any]) -> None:
    """A stack would draw them from one generator, not from each client's."""

    def build(spec: SubmodelSpec) -> nn.Module:
        size = kept_channels(8, spec.stage_width(0))
        return nn.Sequential(nn.Flatten(), nn.Linear(64, size), nn.Dropout(), nn.Linear(size, 10))

    full = ((1.0,),)
    family = Family(build, (SubmodelSpec(full, 0.5), SubmodelSpec(full)))
    setting = assemble(config_from(quick))
    config = config_from(with_settings(quick, {"engine.together": 2}))
    check_together(config, setting.family, setting.task)
    with pytest.raises(ConfigError, match="random operation.*dropout"):
        check_together(config, family, setting.task)
