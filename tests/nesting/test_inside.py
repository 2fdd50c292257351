"""Which members are inside which, and what travels of them."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from nefl.errors import NestingError
from nefl.methods import make_family
from nefl.nesting.inside import members_inside, of_member, train_within, trained_roles
from nefl.nesting.sets import extract_all, travel_layout
from nefl.nesting.spec import Family, SubmodelSpec


class Net(nn.Module):
    """Two layers of one width each, the second only if its block is there."""

    def __init__(self, spec: SubmodelSpec) -> None:
        super().__init__()
        wide = round(4 * spec.stage_width(0))
        self.stem = nn.Linear(2, wide)
        self.norm = nn.BatchNorm1d(wide)
        for number, step in enumerate(spec.blocks[0]):
            if step:
                self.add_module(f"block{number}", nn.Linear(wide, wide))


def family(*members: tuple[tuple[float, ...], float]) -> Family:
    specs = tuple(SubmodelSpec((blocks,), width) for blocks, width in members)
    return Family(Net, specs, (nn.BatchNorm1d,))


def test_width_is_inside_width_and_depth_inside_depth() -> None:
    assert [members_inside(make_family("resnet8", "nefl-w"), k) for k in (1, 2, 3)] == [
        (),
        (1,),
        (1, 2),
    ]
    nested = family(((1, 0, 0), 0.5), ((1, 1, 0), 0.5), ((1, 1, 1), 1.0))
    assert members_inside(nested, 3) == (1, 2)


def test_members_that_skip_other_blocks_or_are_wider_are_not_inside() -> None:
    crossed = family(((1, 0, 0), 0.25), ((0, 1, 0), 0.5), ((1, 1, 0), 0.75), ((1, 1, 1), 1.0))
    assert [members_inside(crossed, k) for k in range(1, 5)] == [(), (), (1, 2), (1, 2, 3)]
    wider = family(((1, 0, 0), 0.75), ((1, 1, 1), 0.5), ((1, 1, 1), 1.0))
    assert members_inside(wider, 2) == ()
    message = (
        r"member 1 is not inside submodel 2: it has block 1 of stage 1, which the larger .*none"
    )
    with pytest.raises(NestingError, match=message):
        train_within(crossed, lambda k: (1,) if k == 2 else ())
    with pytest.raises(NestingError, match=r"its stem.weight \(3, 2\) is no corner of \(2, 2\)"):
        train_within(wider, lambda k: (1,) if k == 2 else ())


def test_a_tensor_that_the_larger_one_lacks_is_named() -> None:
    def build(spec: SubmodelSpec) -> nn.Module:
        net = Net(spec)
        if spec.blocks[0][2] == spec.blocks[0][1]:  # the first and the last have a side branch
            net.add_module("side", nn.Linear(2, 2))
        return net

    some = Family(
        build, tuple(SubmodelSpec((b,)) for b in ((1.0, 0, 0), (1.0, 1.0, 0), (1.0, 1.0, 1.0)))
    )
    with pytest.raises(NestingError, match=r"not inside submodel 2: it has side.weight, which"):
        train_within(some, lambda k: (1,) if k == 2 else ())
    assert members_inside(some, 3) == (1, 2)


@pytest.mark.parametrize("members", [(2,), (3,), (0,), (1, 1), (True,), 1, ("1",)])
def test_what_is_no_smaller_member_is_refused(members: tuple[int, ...]) -> None:
    nested = family(((1, 0, 0), 0.5), ((1, 1, 1), 1.0))
    with pytest.raises(NestingError, match="submodel 2.*1"):
        train_within(nested, lambda k: members if k == 2 else ())


def test_a_list_for_other_submodels_is_refused() -> None:
    with pytest.raises(NestingError, match="within: 1 entries for 2 submodels"):
        replace(family(((1, 0, 0), 0.5), ((1, 1, 1), 1.0)), within=((),))


def test_only_what_a_member_has_for_itself_travels_beside_the_weights() -> None:
    plain = family(((1, 0, 0), 0.5), ((1, 1, 1), 1.0))
    assert train_within(plain, lambda _: ()) is plain
    within = train_within(plain, lambda k: (1,) if k == 2 else ())
    assert within.fingerprint == plain.fingerprint
    assert travel_layout(within, 1, ["a"]) == travel_layout(plain, 1, ["a"])
    layout = travel_layout(within, 2, ["a"])
    added = layout.keys() - travel_layout(plain, 2, ["a"]).keys()
    own = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert added == {f"member/1/norm.{name}" for name in own}
    assert layout["member/1/norm.weight"].shape == (2,)
    state = within.initial_state(0)
    tensors = extract_all(state, within, 2, ())
    assert list(tensors) == list(travel_layout(within, 2, ()))
    torch.testing.assert_close(of_member(tensors, 1), dict(state.per_submodel[0]))
    roles = trained_roles(within, 2)
    assert roles["member/1/norm.weight"] == "parameter"
    assert roles["member/1/norm.running_var"] == "statistic"
