"""Methods with a server half against their published algorithms, written out element by element.

The twin keeps everything at global size: x, and for each client its own variate. Sums and counts
are per element, so that nesting is nothing but elements that fewer clients reach.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nefl
from nefl.config.reading import config_from, with_settings
from nefl.nesting.sets import travel_layout
from nefl.running.assembly import Setting, assemble
from nefl.server.cohort import assign_submodels, sample_cohort
from nefl.tasks.task import rows_of

NET = """
import torch
from torch import nn
from nefl import Family, SubmodelSpec
from nefl.nesting.spec import kept_channels

class Net(nn.Module):
    def __init__(self, spec, classes, size):
        super().__init__()
        hidden = kept_channels(6, spec.stage_width(0))
        self.early = nn.Linear(size, classes)
        self.stem = nn.Linear(size, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.forward_exits(x)[-1]

    def forward_exits(self, x):
        x = x.flatten(1)
        return [self.early(x), self.head(torch.tanh(self.stem(x)))]

def family(classes, input_shape):
    size = input_shape[0] * input_shape[1] * input_shape[2]
    specs = tuple(SubmodelSpec(((1.0,),), width) for width in (0.34, 0.67, 1.0))
    return Family(lambda spec: Net(spec, classes, size), specs, ())
"""
STEPS, RATE, ROUNDS, CLIENTS = 3, 0.2, 3, 5
Weights = dict[str, Tensor]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: dict[str, Any]) -> dict[str, Any]:
    """Settings under which a step sees all of a client's examples, so that order plays no part."""
    (tmp_path / "twin_net.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "twin_net", raising=False)
    changes = {
        "rounds": ROUNDS,
        "model.name": "twin_net:family",
        "data": {"name": "digits", "train": 60, "test": 20, "augment": "none"},
        "clients": {"count": CLIENTS, "per_round": 3},
        "local": {"epochs": STEPS, "batch_size": 64, "learning_rate": RATE},
        "schedule.name": "constant",
    }
    return with_settings(quick, changes)


def plain(exits: list[Tensor], target: Tensor, _: int) -> Tensor:
    return nn.functional.cross_entropy(exits[-1], target)


def distilled(exits: list[Tensor], target: Tensor, round_number: int) -> Tensor:
    """DepthFL's loss of two exits, which teach each other more and more until round 4."""
    a, b = exits
    p, q = a.softmax(1), b.softmax(1)
    taught = (q.detach() * (q.detach() / p).log()).sum(1).mean()
    taught = taught + (p.detach() * (p.detach() / q).log()).sum(1).mean()
    weight = math.exp(-5 * (1 - round_number / 4) ** 2)
    both = nn.functional.cross_entropy(a, target) + nn.functional.cross_entropy(b, target)
    return both + weight * taught


class Twin:
    """The algorithm itself; `client` and `server` are for a method to write."""

    def __init__(self, setting: Setting, loss: Callable[[list[Tensor], Tensor, int], Tensor]):
        self.setting, self.of = setting, loss
        self.x = {n: t.clone() for n, t in setting.initial_state().shared.items()}
        self.server_memory = {n: torch.zeros_like(t) for n, t in self.x.items()}
        self.own = [{n: torch.zeros_like(t) for n, t in self.x.items()} for _ in range(CLIENTS)]

    def client(self, i: int, submodel: int, round_number: int) -> tuple[Weights, Weights]:
        """Return y_i, and a tensor that is 1 where client i reaches and 0 elsewhere."""
        family, task = self.setting.family, self.setting.task
        model = family.build(family.specs[submodel - 1])
        boxes = {n: tuple(map(slice, p.shape)) for n, p in model.named_parameters()}
        rows = rows_of(task.visible(task.train), self.setting.partition.client(i))
        inputs, target = task.make_inputs(rows), task.make_target(rows)
        y = {n: t.clone() for n, t in self.x.items()}
        for _ in range(STEPS):
            weights = {n: y[n][box].clone().requires_grad_() for n, box in boxes.items()}
            exits = torch.func.functional_call(
                Exits(model), {f"model.{n}": w for n, w in weights.items()}, inputs
            )
            loss = self.of(exits, target, round_number) + sum(
                self.regulariser(w, self.x[n][boxes[n]], self.own[i][n][boxes[n]], n, boxes[n])
                for n, w in weights.items()
            )
            gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
            for (n, w), g in zip(weights.items(), gradients, strict=True):
                if g is not None:
                    y[n][boxes[n]] = w.detach() - RATE * g
        reached = {n: torch.zeros_like(t) for n, t in self.x.items()}
        for n, box in boxes.items():
            reached[n][box] = 1
        return y, reached

    def regulariser(
        self, w: Tensor, began: Tensor, own: Tensor, name: str, box: tuple[slice, ...]
    ) -> Tensor:
        raise NotImplementedError

    def round(self, round_number: int) -> None:
        plan = self.setting.plan.cohort
        tasks = assign_submodels(sample_cohort(plan, round_number), plan, round_number)
        trained = [(t.client, *self.client(t.client, t.submodel, round_number)) for t in tasks]
        before = self.x
        self.x, self.counts = {}, {}
        for name, old in before.items():
            self.counts[name] = sum((r[name] for _, _, r in trained), torch.zeros_like(old))
            total = sum((y[name] * r[name] for _, y, r in trained), torch.zeros_like(old))
            mean = torch.where(self.counts[name] > 0, total / self.counts[name].clamp(min=1), old)
            self.x[name] = mean
        self.finish(before, trained)

    def finish(self, before: Weights, trained: list[tuple[int, Weights, Weights]]) -> None:
        raise NotImplementedError


class Exits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.model.forward_exits(x)  # type: ignore[operator,no-any-return]


class Prox(Twin):
    """FedProx, Algorithm 2, μ = 0.5."""

    def regulariser(
        self, w: Tensor, began: Tensor, own: Tensor, name: str, box: tuple[slice, ...]
    ) -> Tensor:
        return 0.5 / 2 * (w - began).square().sum()

    def finish(self, before: Weights, trained: list[tuple[int, Weights, Weights]]) -> None:
        """The mean is all."""


class Scaffold(Twin):
    """SCAFFOLD, Algorithm 1, option II, η_g = 1."""

    def regulariser(
        self, w: Tensor, began: Tensor, own: Tensor, name: str, box: tuple[slice, ...]
    ) -> Tensor:
        return (w * (self.server_memory[name][box] - own)).sum()

    def finish(self, before: Weights, trained: list[tuple[int, Weights, Weights]]) -> None:
        c = {n: t.clone() for n, t in self.server_memory.items()}
        for i, y, reached in trained:
            for n, r in reached.items():
                change = (-c[n] + (before[n] - y[n]) / (STEPS * RATE)) * r
                self.own[i][n] = self.own[i][n] + change
                self.server_memory[n] = self.server_memory[n] + change / CLIENTS


class Dyn(Twin):
    """FedDyn, Algorithm 1, α = 0.3."""

    def regulariser(
        self, w: Tensor, began: Tensor, own: Tensor, name: str, box: tuple[slice, ...]
    ) -> Tensor:
        return 0.3 / 2 * (w - began).square().sum() - (own * w).sum()

    def finish(self, before: Weights, trained: list[tuple[int, Weights, Weights]]) -> None:
        for i, y, reached in trained:
            for n, r in reached.items():
                moved = 0.3 * (y[n] - before[n]) * r
                self.own[i][n] = self.own[i][n] - moved
                self.server_memory[n] = self.server_memory[n] - moved / CLIENTS
        for n, h in self.server_memory.items():
            self.x[n] = torch.where(self.counts[n] > 0, self.x[n] - h / 0.3, self.x[n])


METHODS: dict[str, tuple[dict[str, Any], type[Twin], Callable[..., Tensor]]] = {
    "fedprox": ({"mu": 0.5}, Prox, plain),
    "scaffold": ({}, Scaffold, plain),
    "feddyn": ({"alpha": 0.3}, Dyn, plain),
    "depthfl-full": ({"alpha": 0.3, "slow_start": 4}, Dyn, distilled),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_the_published_algorithm(
    tiny: dict[str, Any], tmp_path: Path, method: str
) -> None:
    options, kind, loss = METHODS[method]
    settings = with_settings(tiny, {"model.method": method, "model.method_options": options})
    result = nefl.train(settings, tmp_path / "run")
    assert result.summary["failures"] == 0
    setting = assemble(config_from(settings))
    twin = kind(setting, loss)
    for number in range(1, ROUNDS + 1):
        twin.round(number)
    for name, tensor in result.state.shared.items():
        torch.testing.assert_close(tensor, twin.x[name], rtol=1e-4, atol=1e-5, msg=name)
    moved = sum(float((t - setting.initial_state().shared[n]).norm()) for n, t in twin.x.items())
    assert moved > 0.1


def test_what_travels_is_counted(tiny: dict[str, Any], tmp_path: Path) -> None:
    settings = with_settings(tiny, {"model.method": "scaffold", "rounds": 1})
    result = nefl.train(settings, tmp_path / "run")
    setting = assemble(config_from(settings))
    plan = setting.plan.cohort
    tasks = assign_submodels(sample_cohort(plan, 1), plan, 1)
    layouts = [travel_layout(result.family, task.submodel, ["control"]) for task in tasks]
    wanted = sum(info.nbytes for layout in layouts for info in layout.values())
    log = nefl.read_run(result.path).rounds[0]
    assert (log.bytes_down, log.bytes_up) == (wanted, wanted)
    # A set has as many numbers as this model, which has parameters alone.
    weights = [result.family.layout(task.submodel) for task in tasks]
    assert wanted == 2 * sum(info.nbytes for layout in weights for info in layout.values())
    profiles = setting.profiles()
    assert wanted == sum(profiles[task.submodel - 1].payload_bytes for task in tasks)
