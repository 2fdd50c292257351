"""A member inside a client's model: the same as a model of its own with copied corners."""

import copy
import runpy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nefl.client.drift import Proximal
from nefl.client.member import Member
from nefl.client.objective import Local, Objective
from nefl.client.training import Given, LocalTraining, begin, own_generator, train
from nefl.client.within import Within
from nefl.config import LocalConfig, ScheduleConfig
from nefl.errors import NestingError
from nefl.nesting.corners import corner
from nefl.nesting.inside import members_inside
from nefl.nesting.modules import StepSize
from nefl.nesting.spec import Family, SubmodelSpec
from nefl.state import TrainTask

from .test_training import TASK, examples, plain


class OwnNorm(nn.BatchNorm1d):
    """A norm that each submodel has for itself."""


class Net(nn.Module):
    """Own are a norm and a step; a layer stands twice, a weight is tied, a norm is shared."""

    def __init__(self, spec: SubmodelSpec) -> None:
        super().__init__()
        wide = round(6 * spec.stage_width(0))
        self.stem = nn.Linear(4, wide)
        self.norm = OwnNorm(wide)
        self.first = nn.Linear(wide, wide)
        self.again = self.first
        self.tied = nn.Linear(wide, wide)
        self.tied.weight = self.first.weight
        self.step = StepSize(spec.blocks[0][0])
        self.common = nn.BatchNorm1d(wide)
        self.head = nn.Linear(wide, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x.flatten(1)))
        x = self.step(x, torch.tanh(self.again(torch.tanh(self.tied(self.first(x))))))
        return self.head(self.common(x))  # type: ignore[no-any-return]


FAMILY = Family(
    Net, (SubmodelSpec(((0.5,),), 0.5), SubmodelSpec(((1.0,),), 1.0)), (OwnNorm, StepSize)
)
EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = examples(6)
INPUTS = plain(ROWS, None)


def nets() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    return FAMILY.build(FAMILY.specs[0]), FAMILY.build(FAMILY.specs[1])


def copied(
    small: nn.Module, large: nn.Module, family: Family = FAMILY, number: int = 1
) -> nn.Module:
    """Return a model of its own: the small one's own tensors, the large one's corners copied."""
    alone, theirs, own = copy.deepcopy(small), large.state_dict(), family.own_names(number)
    with torch.no_grad():
        for name, tensor in alone.state_dict().items():
            if name not in own:
                tensor.copy_(theirs[name][corner(tensor.shape)])
    return alone


def test_outputs_gradients_and_statistics_are_those_of_a_model_of_its_own() -> None:
    small, large = nets()
    alone, before = copied(small, large), copy.deepcopy(large.state_dict())
    outputs = Member(1, small, FAMILY.own_names(1)).run(large, INPUTS)
    wanted = alone(INPUTS)
    torch.testing.assert_close(outputs, wanted)
    for each in (outputs, wanted):
        torch.autograd.backward(nn.functional.cross_entropy(each, ROWS["labels"]))
    own, there = dict(small.named_parameters()), dict(large.named_parameters())
    for name, parameter in alone.named_parameters():
        if name in FAMILY.own_names(1):
            torch.testing.assert_close(own[name].grad, parameter.grad)
            assert there[name].grad is None
            continue
        whole = torch.zeros_like(there[name])
        assert parameter.grad is not None
        whole[corner(parameter.shape)] = parameter.grad
        torch.testing.assert_close(there[name].grad, whole, msg=name)
        assert own[name].grad is None, "its module's shared tensors have no part in it"
    mine, shared, at_last = small.state_dict(), large.state_dict(), alone.state_dict()
    for name in ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"):
        torch.testing.assert_close(mine[name], at_last[name])
        torch.testing.assert_close(shared[name], before[name])
    moved = shared["common.running_mean"]
    torch.testing.assert_close(moved[:3], at_last["common.running_mean"])
    torch.testing.assert_close(moved[3:], before["common.running_mean"][3:])


@pytest.mark.parametrize("example", ["custom_resnet", "custom_transformer"])
def test_members_of_the_examples_add_their_gradients_in_the_corners(example: str) -> None:
    """All members of a step beside each other, against models of their own."""
    given = runpy.run_path(str(EXAMPLES / f"{example}.py"))
    if example == "custom_resnet":
        # The specs of its `main`, with norms and steps for each submodel.
        specs = (
            SubmodelSpec(((1.0, 0.0, 1.0),), width=0.5),
            SubmodelSpec(((1.0, 1.0, 1.0),), width=0.75),
            SubmodelSpec(((1.0, 1.0, 1.0),)),
        )
        family = Family(given["TinyNet"], specs, (nn.BatchNorm2d, StepSize))
        inputs, target = torch.randn(6, 3, 16, 16), torch.randint(4, (6,))
    else:
        specs = (
            SubmodelSpec(((1.0, 1.0, 0.0, 0.0),), width=0.5),
            SubmodelSpec(((1.0, 1.0, 1.0, 0.0),), width=0.75),
            SubmodelSpec(((1.0, 1.0, 1.0, 1.0),)),
        )
        family = Family(given["build"], specs)
        inputs, target = torch.randint(100, (6, 12)), torch.randint(3, (6,))
    assert members_inside(family, 3) == (1, 2)
    first, second, whole = (family.build(spec) for spec in specs)
    alone = [copied(each, whole, family, k) for k, each in ((1, first), (2, second))]
    alone.append(copy.deepcopy(whole))

    within = {k: Member(k, each, family.own_names(k)) for k, each in ((1, first), (2, second))}
    local = Local(whole, TASK, TrainTask(1, 0, 3), 1, {}, within=within)
    torch.autograd.backward(Within("all", weight=0.5).loss(local, inputs, target))
    for model, share in zip(alone, (0.25, 0.25, 1.0), strict=True):
        torch.autograd.backward(share * nn.functional.cross_entropy(model(inputs), target))

    for name, parameter in whole.named_parameters():
        wanted = torch.zeros_like(parameter)
        for k, model in enumerate(alone, start=1):
            copy_of = dict(model.named_parameters()).get(name)
            if copy_of is not None and (k == 3 or name not in family.own_names(k)):
                assert copy_of.grad is not None
                wanted[corner(copy_of.shape)] += copy_of.grad
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-4, atol=1e-6, msg=name)
    for k, mine in ((1, first), (2, second)):
        theirs = dict(alone[k - 1].named_parameters())
        for name, parameter in mine.named_parameters():
            if name in family.own_names(k):
                torch.testing.assert_close(parameter.grad, theirs[name].grad, msg=name)


def test_with_corners_given_only_what_it_has_for_itself_changes() -> None:
    small, large = nets()
    before, mine = copy.deepcopy(large.state_dict()), copy.deepcopy(small.state_dict())
    outputs = Member(1, small, FAMILY.own_names(1)).run(large, INPUTS, corners_given=True)
    torch.testing.assert_close(outputs, copied(small, large)(INPUTS))
    torch.autograd.backward(nn.functional.cross_entropy(outputs, ROWS["labels"]))
    torch.testing.assert_close(large.state_dict(), before, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in large.parameters())
    assert not torch.equal(small.state_dict()["norm.running_mean"], mine["norm.running_mean"])


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_corners_that_are_left_alone_have_less_of_the_gradient(share: float) -> None:
    small, large = nets()
    member, plain = Member(1, small, FAMILY.own_names(1)), copy.deepcopy(large)
    task = TrainTask(1, 0, 2)
    local = Local(large, TASK, task, 1, {}, within={1: member})
    outputs, wanted = local.member(2, leaves=1, share=share)(INPUTS), plain(INPUTS)
    assert torch.equal(outputs, wanted)
    for each in (outputs, wanted):
        torch.autograd.backward(nn.functional.cross_entropy(each, ROWS["labels"]))
    inner = {n: p.shape for n, p in small.named_parameters() if n not in FAMILY.own_names(1)}
    for name, parameter in large.named_parameters():
        there = plain.get_parameter(name).grad
        assert there is not None
        if name in inner:
            there[corner(inner[name])] *= 1 - share
        torch.testing.assert_close(parameter.grad, there, msg=name)
    torch.testing.assert_close(large.state_dict(), plain.state_dict(), rtol=0, atol=0)


def test_a_member_runs_in_the_mode_of_the_model() -> None:
    small, large = nets()
    member, before = Member(1, small, FAMILY.own_names(1)), copy.deepcopy(small.state_dict())
    wanted = copied(small, large).eval()(INPUTS)
    torch.testing.assert_close(member.run(large.eval(), INPUTS), wanted)
    torch.testing.assert_close(small.state_dict(), before)


def given(small: nn.Module, large: nn.Module) -> Given:
    member = Member(1, small, FAMILY.own_names(1))
    tensors = large.state_dict() | member.own_tensors()
    return Given({name: tensor.clone() for name, tensor in tensors.items()}, within={1: member})


def how(local: LocalConfig, objective: Objective) -> LocalTraining:
    return LocalTraining(local, ScheduleConfig("constant"), 10, 0, None, TASK, objective=objective)


def test_what_a_member_has_for_itself_is_trained_and_goes_back() -> None:
    small, large = nets()
    before = given(small, large)
    local = LocalConfig(epochs=2, batch_size=6, learning_rate=0.3)
    update, _ = train(TrainTask(1, 0, 2), large, ROWS, how(local, Within()), before)
    own = {f"member/1/{name}" for name in FAMILY.own_names(1)}
    assert update.trained.keys() == large.state_dict().keys() | own
    for name in own:
        assert not torch.equal(update.trained[name], before.weights[name]), name
    assert update.trained["member/1/norm.num_batches_tracked"] == 2


def test_an_objective_sees_them_as_parameters_that_began_somewhere() -> None:
    small, large = nets()
    before = given(small, large)
    local = begin(TrainTask(1, 0, 2), large, TASK, 1, before)
    assert local.members == (1,)
    mine = {"member/1/norm.weight", "member/1/norm.bias", "member/1/step.value"}
    assert {n for n in local.parameters if n.startswith("member/")} == mine
    assert all(local.began[name] is before.weights[name] for name in mine)
    # FedProx around it holds them to where they began, as it does the model's own.
    with torch.no_grad():
        for parameter in local.parameters.values():
            parameter.add_(1)
            parameter.grad = torch.zeros_like(parameter)
        Proximal(0.5, of=Within()).before_step(local)
    for name in mine:
        gradient = local.parameters[name].grad
        assert gradient is not None
        torch.testing.assert_close(gradient, torch.full_like(gradient, 0.5))


def test_a_member_that_was_not_named_is_refused() -> None:
    local = Local(nets()[1], TASK, TrainTask(1, 0, 2), 1, {})
    assert local.members == ()
    with pytest.raises(NestingError, match=r"member 1: trained inside submodel 2 are none; let"):
        local.member(1)


def test_the_own_submodels_corners_are_not_given() -> None:
    local = Local(nets()[1], TASK, TrainTask(1, 0, 2), 1, {})
    with pytest.raises(NestingError, match=r"member 2: is the client's own submodel.*leave out"):
        local.member(2, corners_given=True)


def test_who_is_drawn_does_not_follow_from_the_order_of_the_examples() -> None:
    """One client in five has its first draw equal to its first example, modulo five."""
    kind = how(LocalConfig(), Objective())
    equal = 0
    for client in range(500):
        with own_generator(TrainTask(1, client, 1), kind) as generator:
            first = int(torch.randperm(100, generator=generator)[0])
            equal += int(torch.randint(5, ())) == first % 5
    assert 60 < equal < 140
