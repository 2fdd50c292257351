from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nefl.artifacts.checkpoint import state_sha256
from nefl.client.objective import Local, Objective
from nefl.client.precision import compute_in
from nefl.client.training import LocalTraining, train
from nefl.config import LocalConfig, ScheduleConfig
from nefl.config.reading import config_from, with_settings
from nefl.nesting.corners import extract
from nefl.nesting.sets import extract_all
from nefl.nesting.signature import Signature
from nefl.running import lifecycle
from nefl.running.assembly import assemble
from nefl.server.evaluate import Chunk
from nefl.server.stepping import remembering
from nefl.state import TrainTask
from nefl.tasks.task import Task


@pytest.mark.parametrize(
    "method", ["nefl-wd", "heterofl", "scalefl-sd", "fjord-od", "within", "scaffold"]
)
def test_every_objective_and_evaluation_computes_in_bf16(
    quick: dict[str, Any], method: str
) -> None:
    found = {}
    for precision in ("float32", "bf16"):
        config = config_from(
            with_settings(quick, {"model.method": method, "local.precision": precision})
        )
        setting = assemble(config)
        family, site = setting.family, setting.site()
        state = remembering(setting.initial_state(), family, setting.plan.step)
        tensors = extract_all(state, family, 3, setting.plan.receives)
        update = site.train(TrainTask(1, 0, 3), tensors)
        assert {t.dtype for t in update.trained.values()} <= {torch.float32, torch.int64}
        weights = {name: tensor.clone() for name, tensor in update.trained.items()}
        score = site.score(Chunk(3, 0, 50), extract(state, family, 3))
        found[precision] = weights, update.metrics["loss"], score.loss / score.examples
    exact, coarse = found["float32"], found["bf16"]
    for before, after in zip(exact[1:], coarse[1:], strict=True):
        assert before != after
        assert after == pytest.approx(before, rel=0.05)
    assert any(not torch.equal(exact[0][name], coarse[0][name]) for name in exact[0])


@pytest.mark.usefixtures("forked_workers")
def test_runs_in_bf16_repeat_on_all_engines(quick: dict[str, Any], tmp_path: Path) -> None:
    quick = with_settings(quick, {"local.precision": "bf16", "rounds": 2})
    engines = [{"name": "serial"}, {"name": "serial"}, {"name": "workers", "workers": 2}]
    sums = {
        state_sha256(lifecycle.train(quick | {"engine": engine}, tmp_path / f"{number}").state)
        for number, engine in enumerate(engines)
    }
    assert len(sums) == 1


class _Times(Objective):
    """A loss so many times as large, and a note of the rates of the steps that were made."""

    def __init__(self, factor: float) -> None:
        self.factor, self.rates = factor, 0.0

    def loss(self, local: Local, inputs: Tensor, target: Tensor) -> Tensor:
        return super().loss(local, inputs, target) * self.factor

    def after(self, local: Local) -> None:
        self.rates = local.rate_sum


def test_steps_whose_gradients_overflow_in_fp16_are_left_out() -> None:
    columns: dict[str, np.ndarray] = {"x": np.eye(8, 3, dtype=np.float32), "y": np.arange(8) % 2}
    signature = Signature((3,), 2)
    task = Task("tiny", columns, columns, signature, "x", "y", "cross-entropy", ["accuracy"])
    local = LocalConfig(epochs=2, batch_size=4, learning_rate=0.5, precision="fp16")
    rows = {name: torch.from_numpy(column) for name, column in columns.items()}
    for factor, made in ((1.0, 4), (1e30, 0)):
        torch.manual_seed(0)
        model = compute_in(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), "fp16")
        began = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        objective = _Times(factor)
        how = LocalTraining(
            local, ScheduleConfig("constant"), 1, 0, None, task, objective=objective
        )
        update, _ = train(TrainTask(1, 0, 1), model, rows, how)
        moved = [not torch.equal(began[name], t) for name, t in update.trained.items()]
        assert moved == [made > 0] * len(moved)
        assert objective.rates == made * 0.5
