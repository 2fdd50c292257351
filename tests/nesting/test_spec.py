import pickle
from functools import partial

import pytest
import torch
from torch import nn

from nefl.errors import NestingError
from nefl.methods import make_family
from nefl.nesting.modules import Exit, StepSize
from nefl.nesting.spec import Family, SubmodelSpec, kept_channels

FULL = ((1.0,),)


class Stack(nn.Module):
    """Two linear layers around a batch norm; `hidden` channels between them."""

    def __init__(self, spec: SubmodelSpec, hidden: int = 8) -> None:
        super().__init__()
        size = kept_channels(hidden, spec.stage_width(0))
        self.first = nn.Linear(3, size)
        self.norm = nn.BatchNorm1d(size)
        self.last = nn.Linear(size, 2)


def stack(spec: SubmodelSpec) -> nn.Module:
    return Stack(spec)


def test_the_papers_channel_counts() -> None:
    assert [kept_channels(k, 0.8**0.5) for k in (64, 128, 256, 512)] == [58, 115, 229, 458]


def test_rounding_noise_adds_no_channel() -> None:
    assert 0.07 * 100 > 7
    assert kept_channels(100, 0.07) == 7
    assert kept_channels(5, 1e-9) == 1


def test_family_separates_shared_from_per_submodel() -> None:
    family = Family(stack, (SubmodelSpec(FULL, 0.5), SubmodelSpec(FULL)))
    assert set(family.global_layout) == {"first.weight", "first.bias", "last.weight", "last.bias"}
    assert family.global_layout["first.weight"].shape == (8, 3)
    assert family.layout(1)["first.weight"].shape == (4, 3)
    assert family.own_names(1) == {
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    }


def test_roles_are_asked_from_the_module_tree() -> None:
    """Also of a module that is no norm and of a name that says nothing."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.running_mean = nn.Parameter(torch.zeros(2))
            self.register_buffer("weight", torch.ones(2))
            self.register_buffer("scratch", torch.ones(2), persistent=False)

    class Net(Stack):
        def __init__(self, spec: SubmodelSpec) -> None:
            super().__init__(spec)
            self.own = Own()
            self.again = self.own

    family = Family(Net, (SubmodelSpec(FULL, 0.5), SubmodelSpec(FULL)))
    roles = family.roles(1)
    assert roles.keys() == family.layout(1).keys()
    assert {name for name, role in roles.items() if role == "statistic"} == {
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
        "own.weight",
        "again.weight",
    }


@pytest.mark.parametrize("method", ["nefl-wd", "heterofl", "fjord-od"])
def test_roles_of_every_kind_of_norm(method: str) -> None:
    family = make_family("resnet8", method)
    for number in range(1, len(family) + 1):
        learned = {name for name, _ in family.meta_module(number).named_parameters()}
        for name, role in family.roles(number).items():
            assert (role == "parameter") == (name in learned), name


def test_a_tensor_has_one_role_in_all_submodels() -> None:
    def build(spec: SubmodelSpec) -> nn.Module:
        module = Stack(spec)
        if not spec.is_full:
            weight = module.last.weight.detach()
            del module.last.weight
            module.last.register_buffer("weight", weight)
        return module

    with pytest.raises(NestingError, match="last.weight: a statistic in submodel 1, a parameter"):
        Family(build, (SubmodelSpec(FULL, 0.5), SubmodelSpec(FULL)))


def test_initial_state_is_the_full_model_and_repeats() -> None:
    family = Family(stack, (SubmodelSpec(FULL, 0.5), SubmodelSpec(FULL)))
    before = torch.random.get_rng_state()
    first, second, other = (family.initial_state(seed) for seed in (7, 7, 8))
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(7)
    expected = stack(SubmodelSpec(FULL)).state_dict()
    for name, tensor in first.shared.items():
        assert torch.equal(tensor, expected[name])
        assert torch.equal(tensor, second.shared[name])
    assert not torch.equal(first.shared["first.weight"], other.shared["first.weight"])
    assert first.per_submodel[0]["norm.weight"].shape == (4,)
    assert first.per_submodel[1]["norm.weight"].shape == (8,)


def test_initial_steps_differ_by_submodel() -> None:
    state = make_family("resnet56", "nefl-do").initial_state(0)
    assert state.per_submodel[0]["layer1.1.step_size.value"].item() == 8
    assert state.per_submodel[1]["layer1.1.step_size.value"].item() == 1
    assert state.per_submodel[4]["layer1.1.step_size.value"].item() == 1


def test_family_travels_to_another_process() -> None:
    family = make_family("resnet8", "nefl-w")
    copy = pickle.loads(pickle.dumps(family))  # noqa: S301
    assert copy.specs == family.specs
    assert dict(copy.global_layout) == dict(family.global_layout)


class Renamed(nn.Module):
    def __init__(self, spec: SubmodelSpec) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        if not spec.is_full:
            self.extra = nn.Linear(2, 1)
        self.last = nn.Linear(4, 4 if spec.is_full else 2)


def larger(spec: SubmodelSpec) -> nn.Module:
    return nn.Sequential(nn.Linear(4 if spec.is_full else 6, 3 if spec.is_full else 1))


def other_axes(spec: SubmodelSpec) -> nn.Module:
    return nn.Conv2d(2, 2, 3) if spec.is_full else nn.Conv1d(2, 2, 3)


def other_dtype(spec: SubmodelSpec) -> nn.Module:
    return nn.Linear(2, 2, dtype=torch.float32 if spec.is_full else torch.float64)


def other_role(spec: SubmodelSpec) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(4) if spec.is_full else nn.LayerNorm(4))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (Renamed, ["extra.weight", "submodel 1", "(1, 2)", "full model", "per_submodel"]),
        (larger, ["0.weight", "(1, 6)", "(3, 4)", "corner cannot be larger"]),
        (other_axes, ["weight", "(2, 2, 3)", "(2, 2, 3, 3)"]),
        (other_dtype, ["weight", "float64", "float32"]),
        (other_role, ["0.weight", "same kind of module"]),
    ],
)
def test_a_family_that_does_not_nest_is_refused_by_name(build: object, words: list[str]) -> None:
    with pytest.raises(NestingError) as caught:
        Family(build, (SubmodelSpec(FULL, 0.5), SubmodelSpec(FULL)))  # type: ignore[arg-type]
    for word in words:
        assert word in str(caught.value)


def test_all_specs_describe_the_same_blocks() -> None:
    odd = SubmodelSpec(((1.0, 1.0),), 0.7)
    with pytest.raises(NestingError, match="same stages and blocks"):
        Family(stack, (SubmodelSpec(FULL, 0.5), odd, SubmodelSpec(FULL)))


def test_order_by_size_is_required() -> None:
    with pytest.raises(NestingError, match="order the specs by size"):
        Family(stack, (SubmodelSpec(FULL), SubmodelSpec(FULL, 0.5)))


class WithExit(nn.Module):
    def __init__(self, spec: SubmodelSpec) -> None:
        super().__init__()
        self.body = nn.Linear(3, 8)
        head = nn.Linear(8, 2) if spec.is_full else nn.Linear(8, 1)
        if spec.is_full:
            self.fc = head
        else:
            self.early = Exit()
            self.early.fc = head


def test_an_exit_may_be_missing_from_the_full_model() -> None:
    family = Family(WithExit, (SubmodelSpec(FULL, 0.5), SubmodelSpec(FULL)))
    assert family.global_layout["early.fc.weight"].shape == (1, 8)
    state = family.initial_state(0)
    assert state.shared["early.fc.weight"].shape == (1, 8)


def needs_values(spec: SubmodelSpec) -> nn.Module:
    rates = torch.linspace(0, 1, 3).tolist()
    return nn.Linear(len(rates), kept_channels(4, spec.stage_width(0)))


def test_a_builder_that_reads_values_still_builds() -> None:
    family = Family(needs_values, (SubmodelSpec(FULL, 0.5), SubmodelSpec(FULL)))
    assert family.layout(1)["weight"].shape == (2, 3)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (partial(SubmodelSpec, ()), "at least one"),
        (partial(SubmodelSpec, ((1.0,), ())), "at least one"),
        (partial(SubmodelSpec, ((-1.0,),)), "-1.0"),
        (partial(SubmodelSpec, ((float("nan"),),)), "nan"),
        (partial(SubmodelSpec, FULL, 0.0), "above 0"),
        (partial(SubmodelSpec, FULL, 1.5), "1.5"),
        (partial(SubmodelSpec, FULL, (0.5, 0.5)), "2 entries for 1 stages"),
        (partial(SubmodelSpec, FULL, 1.0, ((1.0, 1.0),)), "inner_width"),
        (partial(SubmodelSpec, ((1.0, 1.0),), exits=(2,)), "exits"),
        (partial(SubmodelSpec, ((1.0, 1.0, 1.0),), exits=(2, 1)), "exits"),
    ],
)
def test_impossible_specs_are_refused(make: "partial[SubmodelSpec]", word: str) -> None:
    with pytest.raises(NestingError, match=word):
        make()


def test_unknown_submodel_is_refused() -> None:
    family = Family(stack, (SubmodelSpec(FULL),))
    for submodel in (0, 2, -1):
        with pytest.raises(NestingError, match="1 to 1"):
            family.layout(submodel)


def test_constant_steps_are_not_stored() -> None:
    assert not StepSize(2.0, learned=False).state_dict()
    assert set(StepSize(2.0).state_dict()) == {"value"}
    stream, branch = torch.tensor([1.0]), torch.tensor([3.0])
    for learned in (True, False):
        assert StepSize(2.0, learned=learned)(stream, branch).item() == 7
