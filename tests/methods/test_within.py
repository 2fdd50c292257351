"""Members within: whole runs against separate models in plain PyTorch, and alike everywhere."""

import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nefl
from nefl.client.within import Within
from nefl.config import ServerConfig
from nefl.config.reading import config_from, with_settings
from nefl.errors import ConfigError, NestingError, RunError, UpdateError
from nefl.methods import find_method, method_of
from nefl.nesting.sets import extract_all, travel_layout
from nefl.rounds import Observer, run_round
from nefl.running.assembly import Setting, assemble
from nefl.server.aggregate import Aggregate
from nefl.server.cohort import assign_submodels, sample_cohort
from nefl.server.limits import movements, within_limits
from nefl.server.stepping import make_aggregate
from nefl.server.steps import Momentum
from nefl.state import ClientUpdate, ServerState, TrainTask
from nefl.tasks.task import rows_of

NET = """
import torch
from torch import nn
import nefl
from nefl import Family, StepSize, SubmodelSpec
from nefl.client.within import Within
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

class Keeping(Within):
    keeps = ("went",)

first = nefl.Method("both", objective=First())
keeping = nefl.Method("both", objective=Keeping())
"""
STEPS, RATE, MOMENTUM, DECAY, CLIP = 3, 0.2, 0.5, 0.01, 1.5
METHOD = "within"
PLAIN = {"family": "nefl-wd", "teacher": "none"}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: dict[str, Any]) -> dict[str, Any]:
    """Settings under which a step sees all of a client's examples, so that order plays no part."""
    (tmp_path / "within_net.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "within_net", raising=False)
    changes = {
        "rounds": 2,
        "model": {"name": "within_net:family", "method": METHOD, "method_options": PLAIN},
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
        how = method_of(setting.config.model).objective
        assert isinstance(how, Within)
        self.how = how
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

    def inner_loss(self, outputs: Tensor, teacher: Tensor, target: Tensor, now: int) -> Tensor:
        """Return what the smaller one minimises in a round, by the formula."""
        how = self.how
        loss = nn.functional.cross_entropy(outputs, target)
        if how.teacher == "largest":
            p, q = ((each / how.temperature).softmax(1) for each in (teacher.detach(), outputs))
            far = (p * (p / q).log()).sum(1).mean() * how.temperature**2
            loss = (1 - how.teaching) * loss + how.teaching * far
        rounds = self.setting.config.rounds
        return loss * how.weight * (1 + (how.fade - 1) * (now - 1) / (rounds - 1))

    def client(self, client: int, number: int, now: int) -> dict[int, dict[str, Tensor]]:
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
        for step in range((now - 1) * STEPS, now * STEPS):  # counted over the rounds
            for p in (*parameters.values(), *inner.values()):
                p.grad = None
            outputs = large(inputs)
            torch.autograd.backward(nn.functional.cross_entropy(outputs, target))
            if small is not None and step % self.how.every == 0 and now >= self.how.from_round:
                with torch.no_grad():
                    for n, p in inner.items():
                        if n not in own:
                            p.copy_(parameters[n][box(p.shape)])
                torch.autograd.backward(self.inner_loss(small(inputs), outputs, target, now))
                for n, p in inner.items():
                    if n not in own and self.how.trains == "all":
                        gradient = parameters[n].grad
                        assert gradient is not None
                        assert p.grad is not None
                        gradient[box(p.shape)] *= 1 - self.how.leave
                        gradient[box(p.shape)] += p.grad
            trained = [*parameters.values(), *mine]
            norm = torch.stack([p.grad.square().sum() for p in trained if p.grad is not None])
            scale = min(1.0, CLIP / float(norm.sum().sqrt()))
            with torch.no_grad():
                for p in trained:
                    if p.grad is None:  # torch's optimisers leave such alone
                        continue
                    gradient = p.grad * scale + DECAY * p
                    velocity[id(p)] = MOMENTUM * velocity.get(id(p), 0) + gradient
                    p.sub_(RATE * velocity[id(p)])
        found = {number: large.state_dict()}
        if small is None or now < self.how.from_round:
            return found
        return found | {1: small.state_dict()}

    def round(self, round_number: int) -> list[int]:
        plan = self.setting.plan.cohort
        tasks = assign_submodels(sample_cohort(plan, round_number), plan, round_number)
        trained = [(t.submodel, self.client(t.client, t.submodel, round_number)) for t in tasks]
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


TAUGHT = {"teacher": "largest", "weight": 0.5, "teaching": 0.25, "temperature": 2.0, "fade": 0.5}


@pytest.mark.parametrize(
    ("cohort", "submodels", "options"),
    [
        (1, {2}, {}),
        (2, {1, 2}, {}),
        (2, {1, 2}, TAUGHT),
        (2, {1, 2}, {"every": 2, "trains": "own"}),
        (2, {1, 2}, {"from_round": 2, "which": "all"}),
        (2, {1, 2}, {"leave": 1.0}),
        (2, {1, 2}, {"leave": 0.3, "every": 2}),
    ],
)
def test_a_run_is_separate_models_with_copied_corners(
    tiny: dict[str, Any],
    tmp_path: Path,
    cohort: int,
    submodels: set[int],
    options: dict[str, Any],
) -> None:
    changes = {"clients.per_round": cohort, "seed": 0, "model.method_options": PLAIN | options}
    settings = with_settings(tiny, changes)
    result = nefl.train(settings, tmp_path / "run")
    assert result.summary["failures"] == 0
    setting = assemble(config_from(settings))
    assert setting.family.within == ((), (1,))
    twin = Twin(setting)
    for number in (1, 2):
        assert set(twin.round(number)) == submodels
    for name, tensor in result.state.shared.items():
        torch.testing.assert_close(tensor, twin.shared[name], rtol=1e-4, atol=1e-5, msg=name)
    start = setting.initial_state()
    for number, own in enumerate(result.state.per_submodel):
        for name, tensor in own.items():
            wanted = twin.own[number][name]
            torch.testing.assert_close(tensor, wanted, rtol=1e-4, atol=1e-5, msg=name)
            assert not torch.equal(tensor, start.per_submodel[number][name]), name


@pytest.mark.parametrize("average", ["mean", "median"])
@pytest.mark.parametrize("rate", [None, 2.0])
def test_every_average_and_step_counts_who_trained_a_member_within(
    tiny: dict[str, Any], average: str, rate: float | None
) -> None:
    """Two clients, two submodels: the mean, and the median of two, of what both made of norm 1."""
    step = {"server.step.name": "momentum", "server.step.rate": rate} if rate else {}
    settings = with_settings(tiny, {"server.average": average, **step})
    setting = assemble(config_from(settings))
    before = setting.initial_state()
    seen: dict[int, ClientUpdate] = {}
    engine = setting.engine(Path("unused"))

    class Watched:
        def train(self, state: ServerState, tasks: Any) -> Any:
            for update in engine.train(state, tasks):
                assert isinstance(update, ClientUpdate)
                seen[update.task.submodel] = copy.deepcopy(update)
                yield update

    after, report = run_round(before, setting.plan, Watched())  # type: ignore[arg-type]
    assert not report.failures
    inner = "member/1/norm."
    for name in ("weight", "running_mean"):
        mean = (seen[1].trained[f"norm.{name}"] + seen[2].trained[inner + name]) / 2
        old = before.per_submodel[0][f"norm.{name}"]
        wanted = old + rate * (mean - old) if rate and name == "weight" else mean
        torch.testing.assert_close(after.per_submodel[0][f"norm.{name}"], wanted)


def test_a_step_is_made_where_a_member_was_trained_within_alone(tiny: dict[str, Any]) -> None:
    setting = assemble(config_from(tiny))
    state, update = pretended(setting)
    update.trained["member/1/norm.weight"].add_(1)
    step = Momentum(rate=2.0)
    total = make_aggregate(state, setting.family, ServerConfig(), step=step)
    total.add(update)
    after, old = total.finish(), state.per_submodel[0]["norm.weight"]
    torch.testing.assert_close(after.per_submodel[0]["norm.weight"], old + 2)


@pytest.mark.parametrize("average", ["mean", "median"])
def test_an_own_submodel_that_was_never_drawn_has_no_say(
    tiny: dict[str, Any], average: str
) -> None:
    setting = assemble(config_from(tiny))
    state, undrawn = pretended(setting)
    undrawn.trained["member/1/norm.weight"].add_(1)
    drawn = replace(pretended(setting)[1], task=TrainTask(1, 1, 2))
    drawn.trained["norm.weight"].add_(2)
    total = make_aggregate(state, setting.family, ServerConfig(average=average))
    total.add(undrawn)
    total.add(drawn)
    after = total.finish().per_submodel
    for number, moved in ((0, 1), (1, 2)):
        old = state.per_submodel[number]["norm.weight"]
        torch.testing.assert_close(after[number]["norm.weight"], old + moved)


def pretended(setting: Setting) -> tuple[ServerState, ClientUpdate]:
    """Return a state, and an update of the larger submodel that leaves everything as it was."""
    state = setting.initial_state()
    tensors = extract_all(state, setting.family, 2, ())
    trained = {name: tensor.clone() for name, tensor in tensors.items()}
    return state, ClientUpdate(TrainTask(1, 0, 2), trained, 30)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("member/1/norm.bias", None, "lacks member/1/norm.bias"),
        ("member/2/norm.bias", torch.zeros(6), "has unexpected member/2/norm.bias"),
        ("member/1/norm.bias", torch.zeros(6), r"member/1/norm.bias has shape \(6,\), not \(3,\)"),
        ("member/1/norm.running_var", torch.full((3,), torch.inf), "running_var has values that"),
    ],
)
def test_what_members_bring_is_checked_like_the_rest(
    tiny: dict[str, Any], name: str, change: Tensor | None, reason: str
) -> None:
    setting = assemble(config_from(tiny))
    state, update = pretended(setting)
    trained = dict(update.trained)
    trained.pop(name, None)
    if change is not None:
        trained[name] = change
    with pytest.raises(UpdateError, match=reason):
        Aggregate(state, setting.family).add(ClientUpdate(update.task, trained, 30))


def test_limits_take_them_by_their_role(tiny: dict[str, Any]) -> None:
    setting = assemble(config_from(tiny))
    family = setting.family
    state, update = pretended(setting)
    assert movements(update, state, family) == {"parameter": 0, "statistic": 0}
    update.trained["member/1/norm.weight"].add_(100)
    update.trained["member/1/norm.running_mean"].add_(10)
    moved = movements(update, state, family)
    assert moved["parameter"] > moved["statistic"] > 0
    server = ServerConfig(clip_update=moved["parameter"] / 4, clip_statistics=1e6)
    [result] = within_limits(iter([update]), state, family, server)
    assert isinstance(result, ClientUpdate)
    weight, old = result.trained["member/1/norm.weight"], state.per_submodel[0]["norm.weight"]
    torch.testing.assert_close(weight, old + 25)
    assert torch.equal(result.trained["member/1/norm.running_mean"], torch.full((3,), 10.0))


def test_a_member_that_is_not_inside_is_refused_before_a_folder_is_made(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    settings = with_settings(tiny, {"model.method": "within_net:first", "model.method_options": {}})
    with pytest.raises(
        NestingError, match="member 1 is not inside submodel 1: there is no smaller"
    ):
        nefl.train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_sets_and_members_do_not_go_together(tiny: dict[str, Any], tmp_path: Path) -> None:
    settings = with_settings(
        tiny, {"model.method": "within_net:keeping", "model.method_options": {}}
    )
    with pytest.raises(ConfigError, match="has sets .* no place; leave out one or the other"):
        nefl.train(settings, tmp_path / "run")


def test_a_method_without_members_sends_nothing_more(quick: dict[str, Any]) -> None:
    family = assemble(config_from(quick)).family
    assert family.within == ()
    for submodel in range(1, len(family) + 1):
        assert travel_layout(family, submodel, ()) == dict(family.layout(submodel))


class Killed(Observer):
    """Ends a run in its second round, as a kill between two updates would."""

    seen = 0

    def task_done(self, done: int, tasks: int) -> None:
        self.seen += 1
        if self.seen == tasks + 1:
            raise KeyboardInterrupt


@pytest.mark.usefixtures("forked_workers")
def test_the_same_bits_in_workers_and_after_a_kill(tiny: dict[str, Any], tmp_path: Path) -> None:
    """With a step that has a memory of what members have for themselves."""
    settings = with_settings(tiny, {"server.step.name": "momentum"})
    here = nefl.train(settings, tmp_path / "here").summary
    there = with_settings(settings, {"engine.name": "workers", "engine.workers": 1})
    with pytest.raises(KeyboardInterrupt):
        nefl.train(there, tmp_path / "there", observers=[Killed()])
    result = nefl.resume(tmp_path / "there").summary
    assert result["state_sha256"] == here["state_sha256"]
    assert result["failures"] == 0


def test_what_members_send_is_counted(tiny: dict[str, Any], tmp_path: Path) -> None:
    result = nefl.train(with_settings(tiny, {"rounds": 1}), tmp_path / "run")
    layouts = [travel_layout(result.family, submodel, ()) for submodel in (1, 2)]
    wanted = sum(info.nbytes for layout in layouts for info in layout.values())
    log = nefl.read_run(result.path).rounds[0]
    assert (log.bytes_down, log.bytes_up) == (wanted, wanted)


def test_the_method_of_the_docs_trains_all_that_is_inside(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "adding-a-method.md").read_text()
    code = page.partition("```python\nclass All")[2].partition("```")[0]
    row = 'everyone = nefl.Method("depth", learned_steps=True, objective=All())'
    (tmp_path / "within_docs.py").write_text(f"import nefl\n\nclass All{code}\n{row}\n")
    monkeypatch.syspath_prepend(tmp_path)
    changes = {
        "rounds": 1,
        "model": {"method": "within_docs:everyone", "ratios": [0.2, 0.4, 0.7, 1.0]},
        "data.train": 60,
        "server.evaluate_every": 1,
    }
    result = nefl.train(with_settings(quick, changes), tmp_path / "run")
    assert result.summary["failures"] == 0
    within = result.family.within
    assert within[-1] == (1, 2, 3)
    assert within == tuple(nefl.members_inside(result.family, k) for k in (1, 2, 3, 4))


@pytest.mark.parametrize("average", ["mean", "median"])
@pytest.mark.parametrize("step", ["mean", "momentum"])
def test_members_that_nobody_trains_have_no_say(
    tiny: dict[str, Any], average: str, step: str
) -> None:
    """Before its first round the method is the plain one, bit for bit."""
    plain = {"server.average": average, "server.step.name": step}
    later = PLAIN | {"from_round": 9}
    states = []
    for options in (later, PLAIN | {"which": "own"}):
        settings = with_settings(tiny, plain | {"model.method_options": options})
        setting = assemble(config_from(settings))
        engine, state = setting.engine(Path("unused")), setting.initial_state()
        for _ in range(2):
            state, report = run_round(state, setting.plan, engine)
            assert not report.failures
        states.append(state)
    first, second = states
    for name, tensor in first.shared.items():
        assert torch.equal(tensor, second.shared[name]), name
    for ours, theirs in zip(first.per_submodel, second.per_submodel, strict=True):
        for name, tensor in ours.items():
            assert torch.equal(tensor, theirs[name]), name


def test_a_run_whose_weights_fade_is_given_no_more_rounds(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    nefl.train(with_settings(tiny, {"model.method_options": PLAIN | {"fade": 0.5}}), tmp_path / "a")
    with pytest.raises(RunError, match="within, does follows the share of all rounds"):
        nefl.resume(tmp_path / "a", rounds=4)


def test_a_family_with_nothing_inside_is_refused() -> None:
    with pytest.raises(ConfigError, match="no submodel of this family is inside another"):
        nefl.make_family("resnet20", find_method("within", {"family": "depthfl"}))
    family = nefl.make_family("resnet20", "within")
    assert family.within == tuple(nefl.members_inside(family, k)[:1] for k in range(1, 6))


@pytest.mark.parametrize("family", ["heterofl", "nefl-wd-shared"])
def test_members_that_have_nothing_for_themselves_cannot_train_that_alone(family: str) -> None:
    options = {"family": family, "trains": "own"}
    with pytest.raises(ConfigError, match=r"trains 'own'.* have nothing; set .*trains to 'all'"):
        nefl.make_family("resnet8", find_method("within", options))
    kept = nefl.make_family("resnet8", find_method("within", options | {"family": "nefl-wd-steps"}))
    assert kept.within
