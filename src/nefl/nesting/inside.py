"""Members within: smaller submodels that are trained inside a larger one.

A member is inside another if its shared tensors are leading corners of the other's and its blocks
are among the other's: then it runs on the other's weights. What it has for itself, norms and step
sizes say, travels beside them as `member/number/name`, to the client and back.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nefl.errors import NestingError
from nefl.nesting.spec import Family, Role, TensorInfo, holds
from nefl.state import ServerState, Tensors

MEMBER = "member/"
"""What the names of a member's own tensors begin with, beside the weights of another."""


def members_inside(family: Family, submodel: int) -> tuple[int, ...]:
    """Return the smaller submodels that are inside another, smallest first.

    They need not be all: of two depths, one may skip a block that the other has alone.

    Raises:
        NestingError: if there is no such submodel.
    """
    family.index(submodel)
    return tuple(m for m in range(1, submodel) if not _why_outside(family, m, submodel))


def train_within(family: Family, members: Callable[[int], Sequence[int]]) -> Family:
    """Return the family whose submodels train smaller ones inside them.

    Args:
        family: the family.
        members: gives those that are trained inside a submodel, by their numbers.

    Raises:
        NestingError: naming the member that is not inside, and the tensor or block that is not.
    """
    within = tuple(_checked(family, k, members(k)) for k in range(1, len(family) + 1))
    within = within if any(within) else ()
    return family if within == family.within else replace(family, within=within)


def say_within(family: Family) -> str:
    """Say which members are trained within which submodels; nothing where none are.

    A submodel that none of them is inside trains alone, though it is not the smallest.
    """
    if not family.within:
        return ""
    told = [
        f"{', '.join(map(str, family.members_within(k))) or 'none'} in {k}"
        for k in range(2, len(family) + 1)
    ]
    return "; ".join(told)


def alone(family: Family) -> Family:
    """Return the family whose submodels train nothing inside them."""
    return replace(family, within=()) if family.within else family


def _checked(family: Family, submodel: int, members: Sequence[int]) -> tuple[int, ...]:
    inside = ", ".join(map(str, members_inside(family, submodel))) or "none"
    if not isinstance(members, tuple | list) or len(set(members)) != len(members):
        raise NestingError(
            f"members within submodel {submodel}: {members!r:.80}; give each number once, as a "
            f"tuple out of {inside}"
        )
    for member in members:
        if isinstance(member, bool) or not isinstance(member, int) or not 1 <= member < submodel:
            why = "there is no smaller submodel of that number"
        else:
            why = _why_outside(family, member, submodel)
        if why:
            raise NestingError(
                f"member {member!r:.40} is not inside submodel {submodel}: {why}; inside it are "
                f"{inside} (nefl.members_inside)"
            )
    return tuple(members)


def _why_outside(family: Family, member: int, submodel: int) -> str:
    """Say why a member is not inside a submodel; nothing if it is."""
    small, large = (family.specs[family.index(k)].blocks for k in (member, submodel))
    for stage, (theirs, ours) in enumerate(zip(small, large, strict=True), start=1):
        for block, (step, there) in enumerate(zip(theirs, ours, strict=True), start=1):
            if step and not there:
                return f"it has block {block} of stage {stage}, which the larger one skips"
    layout, own = family.layout(submodel), family.own_names(member)
    for name, info in family.layout(member).items():
        if name in own:
            continue
        if name not in layout:
            return f"it has {name}, which the larger one lacks"
        if not holds(layout[name].shape, info.shape):
            return f"its {name} {info.shape} is no corner of {layout[name].shape}"
    return ""


def member_name(member: int, name: str) -> str:
    """Return the name by which a member's own tensor stands beside the weights of another."""
    return f"{MEMBER}{member}/{name}"


def of_member(tensors: Tensors, member: int) -> dict[str, Tensor]:
    """Return a member's own tensors, by their own names, out of those that stand together."""
    start = member_name(member, "")
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


def trained_own(
    trained: Tensors, state: ServerState, family: Family, submodel: int
) -> dict[int, Tensors]:
    """Return whose own tensors an update has trained, with these, by number: the submodel's itself,
    and those of the members inside it.

    Where there are members, one whose own tensors all came back as they went out was not trained:
    it was not drawn, or it is not its time yet. It has no say in what becomes of them.
    """
    members = family.members_within(submodel)
    if not members:
        return {submodel: trained}
    found = {m: of_member(trained, m) for m in members} | {
        submodel: {name: trained[name] for name in family.own_names(submodel)}
    }
    return {m: own for m, own in found.items() if _moved(own, state.per_submodel[m - 1])}


def _moved(own: Tensors, before: Tensors) -> bool:
    return any(not torch.equal(t, before[name].to(t.device)) for name, t in own.items())


def member_layout(family: Family, submodel: int) -> dict[str, TensorInfo]:
    """Return the own tensors of all that is trained inside a submodel."""
    return {
        member_name(m, name): info
        for m in family.members_within(submodel)
        for name, info in family.layout(m).items()
        if name in family.own_names(m)
    }


def extract_members(state: ServerState, family: Family, submodel: int) -> dict[str, Tensor]:
    """Return the own tensors of all that is trained inside a submodel, out of a state."""
    return {
        member_name(m, name): state.per_submodel[m - 1][name]
        for m in family.members_within(submodel)
        for name in family.layout(m)
        if name in family.own_names(m)
    }


def trained_roles(family: Family, submodel: int) -> dict[str, Role]:
    """Return what each tensor of an update of a submodel is for, its members' own among them."""
    roles = dict(family.roles(submodel))
    for m in family.members_within(submodel):
        roles |= {member_name(m, n): r for n, r in family.roles(m).items()}
    return roles
