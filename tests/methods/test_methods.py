"""Each method trains, on both engines alike, and does what is special to it."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nefl import evaluate, train
from nefl.config import ModelConfig
from nefl.config.reading import config_from, with_settings
from nefl.elastic.adopt import recalibrate
from nefl.errors import ConfigError, NestingError
from nefl.methods import METHODS, capability_levels, family_of, make_family
from nefl.models.images import SMALL_IMAGES
from nefl.nesting.corners import extract
from nefl.nesting.modules import BatchNorm, StaticBatchNorm2d, StepSize
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family
from nefl.running.assembly import assemble
from nefl.server.aggregate import Aggregate
from nefl.server.cohort import CohortPlan, assign_submodels, sample_cohort, tier_of
from nefl.server.evaluate import measure_norms
from nefl.state import ClientUpdate, ServerState, TrainTask

THREE_RATIOS = (0.3, 0.6, 1.0)
THREE = {"model.ratios": list(THREE_RATIOS)}


def tiny(quick: dict[str, Any], method: str, **settings: Any) -> dict[str, Any]:
    changes = {"model.method": method, "rounds": 2, **THREE, **settings}
    return with_settings(quick, changes)


# Adapters have a base, and tests of their own.
@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("method", [m for m in METHODS if METHODS[m].scaling != "rank"])
def test_every_method_trains_alike_on_both_engines(
    quick: dict[str, Any], tmp_path: Path, method: str
) -> None:
    serial = train(tiny(quick, method), tmp_path / "serial").summary
    workers = {"engine.name": "workers", "engine.workers": 1}
    other = train(tiny(quick, method, **workers), tmp_path / "workers").summary
    assert serial["failures"] == 0
    assert len(serial["accuracy"]) == (3 if METHODS[method].members == "scaled" else 1)
    assert serial["state_sha256"] == other["state_sha256"]


def test_fjord_is_nefl_w_with_constant_steps(quick: dict[str, Any], tmp_path: Path) -> None:
    fjord = train(tiny(quick, "fjord"), tmp_path / "fjord").summary
    nefl = train(tiny(quick, "nefl-w-nl"), tmp_path / "nefl").summary
    assert fjord["state_sha256"] == nefl["state_sha256"]


def test_nefl_co_is_within_with_momentum(quick: dict[str, Any], tmp_path: Path) -> None:
    """And NeFL-Co-WD unlocks its submodels between a tenth and three tenths of the rounds."""
    for family, unlocked in (("nefl-d", {}), ("nefl-wd", {"clients.small_first": [1, 2]})):
        name = family.replace("nefl", "nefl-co")
        named = train(tiny(quick, name, rounds=6), tmp_path / name).summary
        settings: dict[str, Any] = {
            "model.method_options": {"family": family},
            "server.step.name": "momentum",
            "rounds": 6,
        }
        spelled = train(tiny(quick, "within", **settings, **unlocked), tmp_path / family).summary
        assert named["state_sha256"] == spelled["state_sha256"]


def test_static_norms_keep_no_statistics_while_training() -> None:
    family = make_family("resnet8", "heterofl")
    module = family.build(family.specs[-1])
    norms = [child for child in module.modules() if isinstance(child, BatchNorm)]
    assert norms
    assert all(isinstance(norm, StaticBatchNorm2d) for norm in norms)
    assert not list(module.named_buffers())
    module.train()(torch.randn(4, 3, 32, 32))
    assert not list(module.named_buffers())
    assert not family.own_names(1)


def trained(family: Family, submodels: list[int], values: list[float]) -> ServerState:
    """Average clients that return their submodel filled with one value each."""
    state = family.initial_state(0)
    total = Aggregate(state, family)
    for client, (submodel, value) in enumerate(zip(submodels, values, strict=True)):
        tensors = {
            name: torch.full_like(tensor, value)
            for name, tensor in extract(state, family, submodel).items()
        }
        total.add(ClientUpdate(TrainTask(1, client, submodel), tensors, 1))
    return total.finish()


@pytest.mark.parametrize(("method", "holders"), [("depthfl", 1), ("depthfl-sd", 3)])
def test_an_exits_classifier_is_averaged_among_those_who_have_it(method: str, holders: int) -> None:
    family = make_family("resnet20", method)
    first = next(name for name in family.layout(1) if name.endswith("fc.weight"))
    having = [k for k in range(1, 6) if first in family.layout(k)]
    assert len(having) == (1 if method == "depthfl" else 5), "all deeper ones, or its own alone"
    state = trained(family, [1, 3, 5], [1.0, 2.0, 6.0])
    assert state.shared[first].eq(sum([1.0, 2.0, 6.0][:holders]) / holders).all()


def test_what_each_ablation_keeps_per_submodel() -> None:
    def own(method: str) -> set[type]:
        family = make_family("resnet8", method)
        names = family.own_names(1)
        module = family.build(family.specs[0])
        children = dict(module.named_modules())
        found = {type(children[name.rpartition(".")[0]]) for name in names}
        return {BatchNorm if issubclass(kind, BatchNorm) else kind for kind in found}

    assert own("nefl-wd") == {BatchNorm, StepSize}
    assert own("nefl-wd-nl") == {BatchNorm}
    assert own("nefl-wd-steps") == {StepSize}
    assert own("nefl-wd-shared") == set()


def test_only_capable_clients_train_the_full_model(quick: dict[str, Any]) -> None:
    settings = tiny(quick, "fedavg-capable", **{"clients.spread": 0, "clients.per_round": 3})
    plan = prepare_plan(settings)
    assert plan.levels == 3
    for round_number in range(1, 6):
        cohort = sample_cohort(plan, round_number)
        assert len(cohort) == 3
        assert {tier_of(client, 20, 3) for client in cohort} == {3}
        assert [task.submodel for task in assign_submodels(cohort, plan, round_number)] == [1] * 3


@pytest.mark.parametrize("member", [1, 2, 3])
def test_a_member_alone_is_trained_by_those_who_can_hold_it(
    quick: dict[str, Any], tmp_path: Path, member: int
) -> None:
    options = {"member": member, "family": "nefl-w"}
    changes = {"clients.spread": 0, "clients.per_round": 3, "model.method_options": options}
    settings = tiny(quick, "exclusive", **changes)
    setting = assemble(config_from(settings))
    whole = make_family("resnet8", "nefl-w", classes=10, input_shape=(1, 8, 8), ratios=THREE_RATIOS)
    assert setting.family.specs == whole.specs[member - 1 : member]
    plan, taking_part = setting.plan.cohort, set()
    for round_number in range(1, 20):
        tasks = assign_submodels(sample_cohort(plan, round_number), plan, round_number)
        assert [task.submodel for task in tasks] == [1] * 3
        taking_part |= {tier_of(task.client, 20, 3) for task in tasks}
    assert taking_part == set(range(member, 4))


def test_a_member_that_is_not_there_is_refused(quick: dict[str, Any]) -> None:
    for member, reason in ((4, "the family has submodels 1 to 3"), (0, "give a number from 1")):
        options = {"model.method_options": {"member": member}}
        with pytest.raises(ConfigError, match=rf"member is {member}: {reason}"):
            assemble(config_from(tiny(quick, "exclusive", **options)))


def prepare_plan(settings: dict[str, Any]) -> CohortPlan:
    return assemble(config_from(settings)).plan.cohort


def test_too_few_capable_clients_make_a_smaller_cohort(quick: dict[str, Any]) -> None:
    settings = tiny(quick, "fedavg-capable", **{"clients.spread": 0, "clients.per_round": 20})
    assert len(sample_cohort(prepare_plan(settings), 1)) == 6


def test_the_small_model_is_the_smallest_submodel() -> None:
    small = make_family("resnet20", "fedavg-small")
    assert small.specs == make_family("resnet20", "nefl-wd").specs[:1]
    model = ModelConfig("resnet20", "fedavg-small")
    assert len(family_of(model, SMALL_IMAGES)) == 1
    assert capability_levels(model, SMALL_IMAGES) == (0, 0), "everybody takes part"


def test_a_model_without_exits_cannot_be_distilled(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain_model.py").write_text(
        "from nefl.methods import make_family\n"
        "from nefl.nesting.spec import Family\n"
        "from torch import nn\n"
        "def family(classes, input_shape):\n"
        "    inner = make_family('resnet8', 'fedavg', classes=classes, input_shape=input_shape)\n"
        "    size = input_shape[0] * input_shape[1] * input_shape[2]\n"
        "    build = lambda spec: nn.Sequential(nn.Flatten(), nn.Linear(size, classes))\n"
        "    return Family(build, inner.specs)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = with_settings(
        quick, {"model.name": "plain_model:family", "model.method": "depthfl-sd"}
    )
    with pytest.raises(ConfigError, match="forward_exits"):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


OWN_MODEL = """
from nefl import Family, SubmodelSpec
from nefl.nesting.spec import kept_channels
from torch import nn

def net(spec, classes, shape, flat):
    wide = kept_channels(8, spec.stage_width(0))
    size = shape[1] * shape[2]
    pool = [nn.Flatten()] if flat else [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers = [nn.Conv2d(shape[0], wide, 3, padding=1), nn.ReLU(), *pool]
    return nn.Sequential(*layers, nn.Linear(wide * (size if flat else 1), classes))

def family(classes, input_shape, flat=False):
    blocks = ((1.0,),)
    specs = tuple(SubmodelSpec(blocks, width) for width in (0.25, 0.5, 1.0))
    return Family(lambda spec: net(spec, classes, input_shape, flat), specs, ())

def flattened(classes, input_shape):
    return family(classes, input_shape, True)

def of_colours(classes, input_shape):
    return family(classes, (3, 8, 8))
"""


@pytest.fixture
def own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_net.py").write_text(OWN_MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_net", raising=False)


@pytest.mark.usefixtures("own_model")
def test_methods_mean_what_they_say_with_ones_own_model() -> None:
    def specs(method: str) -> list[float]:
        family = family_of(ModelConfig("own_net:family", method), Signature((1, 8, 8), 10))
        return [spec.stage_width(0) for spec in family.specs]

    assert specs("nefl-w") == [0.25, 0.5, 1.0]
    assert specs("fedavg") == [1.0]
    assert specs("fedavg-small") == [0.25]
    assert specs("fjord-od") == [0.25, 0.5, 1.0]
    assert specs("fedavg-capable") == [1.0]
    model = ModelConfig("own_net:family", "fedavg-capable")
    assert capability_levels(model, Signature((1, 8, 8), 10)) == (3, 2)


@pytest.mark.usefixtures("own_model")
def test_a_model_that_cannot_take_the_images_is_refused_before_a_folder_is_made(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"forward of a batch \[2, 1, 8, 8\] failed"):
        train(with_settings(quick, {"model.name": "own_net:of_colours"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("own_model")
def test_a_model_that_rolling_would_scramble_is_refused(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    changes = {"model.method": "fedrolex", "rounds": 1, "model.name": "own_net:family"}
    train(with_settings(quick, changes), tmp_path / "pooled")
    with pytest.raises(NestingError, match="computes something else"):
        train(with_settings(quick, changes | {"model.name": "own_net:flattened"}), tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_recalibration_measures_norms_anew_and_changes_no_weights(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    result = train(tiny(quick, "nefl-wd"), tmp_path / "run")
    plain, measured = evaluate(result.path), evaluate(result.path, recalibrate=True)
    assert [e.loss for e in plain] != [e.loss for e in measured]
    assert [e.loss for e in plain] == [e.loss for e in evaluate(result.path)]
    always = train(
        tiny(quick, "nefl-wd", **{"server.recalibrate": True}), tmp_path / "always"
    ).summary
    assert always["state_sha256"] == result.summary["state_sha256"]
    assert always["accuracy"] == [e.values["accuracy"] for e in measured]


def test_recalibrated_norms_have_the_statistics_of_their_inputs() -> None:
    family = make_family("resnet8", "nefl-wd")
    module = family.build(family.specs[0])
    module.train()(torch.randn(8, 3, 32, 32) * 9 - 5)  # what was tracked before is forgotten
    batches = [torch.randn(8, 3, 32, 32) * 3 + 1 for _ in range(3)]
    measure_norms(module, batches, torch.contiguous_format)
    seen = [module.get_submodule("conv1")(batch) for batch in batches]
    mean = torch.stack([x.mean((0, 2, 3)) for x in seen]).mean(0)
    variance = torch.stack([x.var((0, 2, 3)) for x in seen]).mean(0)
    norm = module.get_submodule("bn1")
    torch.testing.assert_close(norm.running_mean, mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm.running_var, variance, rtol=1e-4, atol=1e-4)
    assert norm.momentum == 0.1
    assert not any(child.training for child in module.modules())


@pytest.mark.parametrize("method", ["fjord", "fjord-od", "depthfl", "depthfl-sd", "scalefl-sd"])
@pytest.mark.parametrize("submodel", [2, 5])
def test_recalibration_over_what_was_tracked_changes_nothing(method: str, submodel: int) -> None:
    family = make_family("resnet20", method)
    module = family.build(family.specs[submodel - 1])
    batch = torch.randn(16, 3, 32, 32) * 3 + 1
    own = {n: t for n, t in module.named_modules() if isinstance(t, BatchNorm)}
    for norm in own.values():
        norm.momentum = None
    for _ in range(20):  # ordered dropout trains the widest net in some of them only
        module.train()(batch)
    with torch.no_grad():
        before = module.eval()(batch)
    tracked = {n: t.clone() for n, t in module.state_dict().items() if "running" in n}
    measure_norms(module, [batch], torch.contiguous_format)
    with torch.no_grad():
        torch.testing.assert_close(module(batch), before, rtol=1e-3, atol=1e-3)
    for name, tensor in tracked.items():  # those that no batch came by as well
        torch.testing.assert_close(module.state_dict()[name], tensor, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "method", ["fjord-od", "depthfl", "depthfl-sd", "scalefl", "scalefl-sd", "nefl-wd"]
)
def test_a_start_measures_every_norm_somewhere(method: str) -> None:
    # Ratios so small that exits lie early and have norms.
    family = make_family("resnet20", method, ratios=[0.02, 0.1, 1.0])
    state = recalibrate(family.initial_state(0), family, [torch.randn(16, 3, 32, 32) * 3 + 1])
    groups = (state.shared, *state.per_submodel)
    means = {n: t for group in groups for n, t in group.items() if n.endswith("running_mean")}
    assert means
    assert all(bool(tensor.any()) for tensor in means.values()), "a mean is still 0"
