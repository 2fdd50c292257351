"""The frozen role: given tensors are in no layout, state, update or optimiser, and never change."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from nefl.client.optimiser import make_optimiser
from nefl.config import LocalConfig
from nefl.errors import NestingError
from nefl.nesting.frozen import (
    Frozen,
    Moved,
    frozen_names,
    learned_state,
    load_learned,
    move_sharing,
)
from nefl.nesting.modules import measuring_norms
from nefl.nesting.profile import count_frozen, count_params, profile_family, weight_memory
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family, SubmodelSpec, kept_channels
from nefl.nesting.zero_extension import check_family

TAKES = Signature((6,), 3)


class Net(Frozen):
    """A frozen map with a norm, and trained ones beside it that are scaled in width."""

    def __init__(self, spec: SubmodelSpec, value: float = 0.5, wrong: bool = False) -> None:
        super().__init__()
        hidden = kept_channels(8, spec.stage_width(0))
        self.given = nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(3)
        for module in (self.given, self.norm):
            module.requires_grad_(False)
        nn.init.constant_(self.given.weight, value)
        self.up = nn.Linear(6, hidden)
        self.down = nn.Linear(hidden, 3, bias=False)
        self.wrong = 1 / hidden if wrong else 1
        self.freeze()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.given(x)) + self.wrong * self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]


SPECS = SubmodelSpec(((1.0,),), 0.5), SubmodelSpec(((1.0,),))
FAMILY = Family(Net, SPECS)
GIVEN = {"given.weight", "given.bias", *(f"norm.{n}" for n in ("weight", "bias"))}
GIVEN |= {f"norm.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")}
TRAINED = {"up.weight", "up.bias", "down.weight"}


def test_what_is_frozen_is_in_no_layout_and_no_state() -> None:
    for k in (1, 2):
        assert FAMILY.layout(k).keys() == TRAINED
        assert FAMILY.frozen(k).keys() == GIVEN
        assert {n for n, role in FAMILY.roles(k).items() if role == "frozen"} == GIVEN
        assert not FAMILY.own_names(k)
    state = FAMILY.initial_state(0)
    assert state.shared.keys() == TRAINED
    assert not any(state.per_submodel)


def test_another_base_has_another_checksum_and_the_same_fingerprint() -> None:
    other = Family(lambda spec: Net(spec, 0.25), SPECS)
    assert FAMILY.base_checksum == Family(Net, SPECS).base_checksum != other.base_checksum
    assert FAMILY.fingerprint == other.fingerprint
    plain = Family(lambda spec: nn.Linear(2, kept_channels(4, spec.stage_width(0))), SPECS)
    assert plain.base_checksum == ""


def test_training_moves_nothing_that_is_frozen() -> None:
    module = Net(SPECS[-1])
    before = {name: module.state_dict()[name].clone() for name in GIVEN}
    optimiser = make_optimiser(module, LocalConfig(optimizer="adamw", weight_decay=0.1))
    assert isinstance(optimiser, torch.optim.Optimizer)
    module.train()
    assert module.up.training
    assert not module.norm.training
    for _ in range(2):
        optimiser.zero_grad()
        torch.autograd.backward(module(torch.randn(4, 6)).square().sum())
        optimiser.step()
    assert len(optimiser.state) == len(TRAINED)
    assert all(torch.equal(module.state_dict()[name], before[name]) for name in GIVEN)
    assert learned_state(module).keys() == TRAINED


def test_measuring_norms_leaves_frozen_ones_alone() -> None:
    module = Net(SPECS[-1]).eval()
    before = {name: module.state_dict()[name].clone() for name in GIVEN}
    with torch.no_grad(), measuring_norms(module) as measured:
        module(torch.randn(4, 6))
        assert not module.norm.training
    assert not measured
    assert all(torch.equal(module.state_dict()[name], before[name]) for name in GIVEN)


def test_the_zero_extension_check_takes_frozen_tensors_as_given() -> None:
    check_family(FAMILY, TAKES.noise(2))
    with pytest.raises(NestingError, match="gives another output"):
        check_family(Family(lambda spec: Net(spec, wrong=True), SPECS), TAKES.noise(2))


def test_submodels_freeze_the_same_tensors() -> None:
    def build(spec: SubmodelSpec) -> nn.Module:
        module = Net(spec)
        if spec.is_full:
            module.given.requires_grad_(True)
            module.freeze()
        return module

    with pytest.raises(NestingError, match=r"given.weight: frozen in submodel 1.*does not have it"):
        Family(build, SPECS)


def test_copies_share_what_is_frozen_and_nothing_else() -> None:
    module = Net(SPECS[-1])
    other = copy.deepcopy(module)
    ours, theirs = module.state_dict(), other.state_dict()
    for name in ours:
        assert (ours[name].data_ptr() == theirs[name].data_ptr()) == (name in GIVEN), name
    other.double()
    assert module.given.weight.dtype == torch.float32
    assert frozen_names(other) == frozen_names(module) == GIVEN


def test_on_a_device_what_is_frozen_lies_once() -> None:
    moved: Moved = {}
    first = Net(SPECS[-1])
    second = copy.deepcopy(first)
    first, second = (move_sharing(m, torch.device("meta"), moved) for m in (first, second))  # type: ignore[assignment]
    assert len(moved) == len(GIVEN)
    assert first.given.weight.device.type == second.up.weight.device.type == "meta"


def test_tensors_that_begin_at_one_place_are_told_apart_and_the_place_stays_taken() -> None:
    module = Net(SPECS[-1])
    module.register_buffer("corner", module.given.weight.detach()[:2])
    module.freeze()
    moved: Moved = {}
    move_sharing(module, torch.device("meta"), moved)
    assert module.state_dict()["corner"].shape == (2, 6)
    assert len(moved) == len(GIVEN) + 1
    assert all(source.data_ptr() == place[0] for place, (source, _) in moved.items())


def test_tensors_to_load_are_those_that_are_trained() -> None:
    module = Net(SPECS[-1])
    tensors = {name: torch.ones_like(t) for name, t in learned_state(module).items()}
    load_learned(module, tensors)
    assert float(module.up.weight.detach().mean()) == 1
    for change in ({"given.weight": torch.ones(3, 6)}, {"up.weight": None}):
        with pytest.raises(NestingError, match=next(iter(change))):
            load_learned(module, {n: t for n, t in {**tensors, **change}.items() if t is not None})


def test_a_frozen_weight_costs_memory_once() -> None:
    module = FAMILY.meta_module(2)
    given = 6 * 3 + 3 + 3 + 3
    assert count_frozen(module) == given
    assert count_params(module) == 6 * 8 + 8 + 8 * 3
    needs = [weight_memory(module, copies) for copies in (0, 1, 2)]
    assert {b - a for a, b in pairwise(needs)} == {4 * count_params(module)}
    profile = profile_family(FAMILY, TAKES, 4)[-1]
    assert profile.frozen == given
    assert profile.payload_bytes == 4 * count_params(module)
    # Forward, and backward for weights and inputs of what is trained; x itself needs no gradient.
    assert profile.train_macs == (6 * 3 + 6 * 8 + 8 * 3) + (8 * 3 * 2 + 6 * 8)
