"""A client in ExecuTorch does what one with torch does."""

from typing import Any

import pytest
import torch

from nefl.artifacts.trainable import NormCard
from nefl.config.reading import config_from
from nefl.nesting.corners import extract
from nefl.ondevice.client import follow
from nefl.running.assembly import Setting, assemble
from nefl.state import TrainTask


@pytest.mark.long
@pytest.mark.parametrize("submodel", [1, 2])
def test_an_update_is_torchs(setting: Setting, tiny: dict[str, Any], submodel: int) -> None:
    """Batches of 8 and a smaller one, momentum, decay, and a rate that changes at every step."""
    plain = assemble(config_from(tiny))
    weights = extract(plain.initial_state(), plain.family, submodel)
    here, there = setting.site(), plain.site()
    for round_number, client in ((1, 0), (2, 3)):
        task = TrainTask(round_number, client, submodel)
        wanted, found = there.train(task, weights), here.train(task, weights)
        assert list(found.trained) == list(wanted.trained)
        assert found.examples == wanted.examples
        assert found.metrics["loss"] == pytest.approx(wanted.metrics["loss"], rel=1e-5)
        for name, tensor in wanted.trained.items():
            assert found.trained[name].dtype == tensor.dtype
            assert torch.allclose(found.trained[name], tensor, rtol=1e-4, atol=1e-6), name
            assert name == "norm.num_batches_tracked" or not tensor.equal(weights[name]), name


@pytest.mark.long
def test_tasks_leave_nothing_behind(setting: Setting) -> None:
    site, weights = setting.site(), extract(setting.initial_state(), setting.family, 1)
    first = site.train(TrainTask(1, 0, 1), weights)
    site.train(TrainTask(1, 1, 1), weights)
    again = site.train(TrainTask(1, 0, 1), weights)
    assert all(first.trained[name].equal(tensor) for name, tensor in again.trained.items())


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_follow_as_torchs_do(momentum: float | None) -> None:
    norm = torch.nn.BatchNorm2d(3, momentum=momentum)
    running = {f"n.{name}": t.clone() for name, t in norm.state_dict().items() if "n" in name}
    for size in (4, 2):
        x = torch.randn(size, 3, 2, 5, generator=torch.Generator().manual_seed(size))
        norm(x)
        batch = [x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)]
        follow(running, NormCard("n", 10, momentum), batch, size)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.allclose(running[f"n.{name}"], norm.state_dict()[name])
