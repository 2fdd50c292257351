"""Members within: whole runs against separate models in plain PyTorch, and alike everywhere."""

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nefl
from nefl.config.reading import config_from, with_settings
from nefl.nesting.sets import travel_layout
from nefl.rounds import Observer
from nefl.running.assembly import Setting, assemble
from nefl.server.cohort import assign_submodels, sample_cohort
from nefl.server.limits import movements
from nefl.state import ServerState
from nefl.tasks.task import rows_of

NET = """
import torch
from torch import nn
import nefl
from nefl import Family, StepSize, SubmodelSpec
from nefl.client.within import SmallestWithin
from nefl.nesting.spec import kept_channels

class Net(nn.Module):
    def __init__(self, spec, classes, size):
        super().__init__()
        hidden = kept_channels(6, spec.stage_width(0))
        self.stem = nn.Linear(size, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.steps, self.blocks = nn.ModuleDict(), nn.ModuleDict()
        for number, step in enumerate(spec.blocks[0]):
            if step:
                self.steps[str(number)] = StepSize(step)
                self.blocks[str(number)] = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        x = self.norm(self.stem(x.flatten(1)))
        for number, block in self.blocks.items():
            x = self.steps[number](x, torch.tanh(block(x)))
        return self.head(x)

def family(classes, input_shape):
    size = input_shape[0] * input_shape[1] * input_shape[2]
    specs = SubmodelSpec(((1.0, 0),), 0.5), SubmodelSpec(((1.0, 1.0),), 1.0)
    return Family(lambda spec: Net(spec, classes, size), specs)

class First(nefl.Objective):
    def members(self, family, submodel):
        return (1,)

class Keeping(SmallestWithin):
    keeps = ("went",)

first = nefl.Method("both", objective=First())
keeping = nefl.Method("both", objective=Keeping())
"""
STEPS, RATE, MOMENTUM, DECAY, CLIP = 3, 0.2, 0.5, 0.01, 1.5
METHOD = "nefl-w-within"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: dict[str, Any]) -> dict[str, Any]:
    """Settings under which a step sees all of a client's examples, so that order plays no part."""
    (tmp_path / "within_net.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "within_net", raising=False)
    changes = {
        "rounds": 2,
        "model": {"name": "within_net:family", "method": METHOD},
        "data": {"name": "digits", "train": 60, "test": 20, "augment": "none"},
        "clients": {"count": 2, "per_round": 2, "capability": "fixed"},
        "local": {
            "epochs": STEPS,
            "batch_size": 64,
            "learning_rate": RATE,
            "momentum": MOMENTUM,
            "weight_decay": DECAY,
            "clip_norm": CLIP,
        },
        "schedule.name": "constant",
    }
    return with_settings(quick, changes)


class Twin:
    """Separate models, corners copied before each step, gradients added by hand."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        state = setting.initial_state()
        self.shared = {n: t.clone() for n, t in state.shared.items()}
        self.own = [{n: t.clone() for n, t in own.items()} for own in state.per_submodel]

    def model(self, number: int) -> nn.Module:
        family = self.setting.family
        model = family.build(family.specs[number - 1]).train()
        shared = {n: self.shared[n][box(i.shape)] for n, i in family.layout(number).items()
                  if n in self.shared}  # fmt: skip
        model.load_state_dict(copy.deepcopy(shared | self.own[number - 1]))
        return model

    def client(self, client: int, number: int) -> dict[int, dict[str, Tensor]]:
        """Return all tensors of each model that a client trains, by the models' numbers."""
        task, own = self.setting.task, self.setting.family.own_names(1)
        rows = rows_of(task.visible(task.train), self.setting.partition.client(client))
        inputs, target = task.make_inputs(rows), task.make_target(rows)
        large = self.model(number)
        small = self.model(1) if number > 1 else None
        parameters = dict(large.named_parameters())
        inner = {} if small is None else dict(small.named_parameters())
        mine = [p for n, p in inner.items() if n in own]
        velocity: dict[int, Tensor] = {}
        for _ in range(STEPS):
            for p in (*parameters.values(), *inner.values()):
                p.grad = None
            torch.autograd.backward(nn.functional.cross_entropy(large(inputs), target))
            if small is not None:
                with torch.no_grad():
                    for n, p in inner.items():
                        if n not in own:
                            p.copy_(parameters[n][box(p.shape)])
                torch.autograd.backward(nn.functional.cross_entropy(small(inputs), target))
                for n, p in inner.items():
                    if n not in own:
                        parameters[n].grad[box(p.shape)] += p.grad  # type: ignore[index]
            trained = [*parameters.values(), *mine]
            norm = torch.stack([p.grad.square().sum() for p in trained if p.grad is not None])
            scale = min(1.0, CLIP / float(norm.sum().sqrt()))
            with torch.no_grad():
                for p in trained:
                    assert p.grad is not None
                    step = p.grad * scale + DECAY * p
                    velocity[id(p)] = MOMENTUM * velocity.get(id(p), 0) + step
                    p.sub_(RATE * velocity[id(p)])
        found = {number: large.state_dict()}
        return found if small is None else found | {1: small.state_dict()}

    def round(self, round_number: int) -> list[int]:
        plan = self.setting.plan.cohort
        tasks = assign_submodels(sample_cohort(plan, round_number), plan, round_number)
        trained = [(t.submodel, self.client(t.client, t.submodel)) for t in tasks]
        for name, old in self.shared.items():
            total, count = torch.zeros_like(old), torch.zeros_like(old)
            for number, models in trained:
                if name in models[number]:
                    part = models[number][name]
                    total[box(part.shape)] += part
                    count[box(part.shape)] += 1
            self.shared[name] = torch.where(count > 0, total / count.clamp(min=1), old)
        for number, own in enumerate(self.own, start=1):
            for name, old in own.items():
                votes = [models[number][name] for _, models in trained if number in models]
                if votes and old.is_floating_point():
                    own[name] = torch.stack(votes).mean(0)
                elif votes:
                    own[name] = torch.stack(votes).amax(0)
        return [number for number, _ in trained]


def box(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(map(slice, shape))


@pytest.mark.parametrize(("clients", "submodels"), [(1, [2]), (2, [2, 1])])
def test_a_run_is_separate_models_with_copied_corners(
    tiny: dict[str, Any], tmp_path: Path, clients: int, submodels: list[int]
) -> None:
    settings = with_settings(tiny, {"clients": {"count": clients, "per_round": clients}})
    result = nefl.train(settings, tmp_path / "run")
    assert result.summary["failures"] == 0
    setting = assemble(config_from(settings))
    assert setting.family.within == ((), (1,))
    twin = Twin(setting)
    for number in (1, 2):
        assert sorted(twin.round(number)) == sorted(submodels)
    close = {"rtol": 1e-4, "atol": 1e-5}
    for name, tensor in result.state.shared.items():
        torch.testing.assert_close(tensor, twin.shared[name], msg=name, **close)
    start = setting.initial_state()
    for number, own in enumerate(result.state.per_submodel):
        for name, tensor in own.items():
            torch.testing.assert_close(tensor, twin.own[number][name], msg=name, **close)
            assert not torch.equal(tensor, start.per_submodel[number][name]), name


@pytest.mark.parametrize("server", [{}, {"average": "median"}, {"step.name": "momentum"}])
def test_every_average_counts_who_trained_a_member_within(
    tiny: dict[str, Any], server: dict[str, Any]
) -> None:
    """Two clients, two submodels: the mean, and the median of two, of what both made of norm 1."""
    settings = with_settings(tiny, {f"server.{key}": value for key, value in server.items()})
    setting = assemble(config_from(settings))
    before, seen = setting.initial_state(), {}
    engine = setting.engine(Path("unused"))

    class Watched:
        def train(self, state: ServerState, tasks: Any) -> Any:
            for update in engine.train(state, tasks):
                seen[update.task.submodel] = copy.deepcopy(update)  # type: ignore[union-attr]
                yield update

    after, report = nefl.rounds.run_round(before, setting.plan, Watched())  # type: ignore[arg-type]
    assert not report.failures
    for name in ("norm.weight", "norm.running_mean"):
        mean = (seen[1].trained[name] + seen[2].trained[f"member/1/{name}"]) / 2
        torch.testing.assert_close(after.per_submodel[0][name], mean)
        torch.testing.assert_close(after.per_submodel[1][name], seen[2].trained[name])
