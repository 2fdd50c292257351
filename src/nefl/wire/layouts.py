"""Which tensors of a family are made smaller when they travel, and the bytes that this takes.

Made smaller are the parameters of float32 with more than one element. All else travels as it is:
statistics, whole numbers, step sizes (each is one number), and the sets of a method, of which both
sides keep books that must not drift apart. What is frozen does not travel at all.
"""

from collections.abc import Iterable, Mapping

import torch

from nefl.config import WireFormat
from nefl.nesting.inside import member_name
from nefl.nesting.sets import set_layout, travel_layout
from nefl.nesting.spec import Family, Layout, TensorInfo
from nefl.wire.coding import DTYPES, count_scales

SCALES = "wire/scales"
"""The tensor of a message that has the scales of all others, one after another."""

Place = tuple[int, str]
"""Where a tensor of a server state lies: 0 for shared ones or the submodel it belongs to; its
name."""


def place_name(place: Place) -> str:
    """Return the name of a place in a whole state, as in a checkpoint."""
    submodel, name = place
    return f"submodel/{submodel}/{name}" if submodel else f"shared/{name}"


def places(family: Family, submodel: int) -> dict[str, Place]:
    """Return the tensors of a submodel that are made smaller, members' own among them.

    They go by the names that they travel by, each with its place in a server state.
    """
    found = {name: _place(family, submodel, name) for name in _smaller(family, submodel)}
    for member in family.members_within(submodel):
        own = family.own_names(member)
        of_member = (name for name in _smaller(family, member) if name in own)
        found |= {member_name(member, name): (member, name) for name in of_member}
    return found


def _smaller(family: Family, submodel: int) -> list[str]:
    """Return a submodel's names; what the global tensor is decides, so that all clients agree."""
    return [
        name
        for name, info in set_layout(family, submodel).items()
        if info.dtype is torch.float32 and _whole(family, _place(family, submodel, name)).numel > 1
    ]


def _place(family: Family, submodel: int, name: str) -> Place:
    return (submodel if name in family.own_names(submodel) else 0), name


def _whole(family: Family, place: Place) -> TensorInfo:
    submodel, name = place
    return family.layout(submodel)[name] if submodel else family.global_layout[name]


def state_scales(family: Family) -> dict[Place, int]:
    """Return every place of a state that is made smaller, with the number of its scales."""
    every = dict.fromkeys(
        _place(family, k, name) for k in range(1, len(family) + 1) for name in _smaller(family, k)
    )
    return {place: count_scales(_whole(family, place).shape) for place in every}


def submodel_scales(family: Family, submodel: int) -> dict[str, int]:
    """Return the tensors of a submodel that are made smaller, with the number of their scales."""
    layout = travel_layout(family, submodel, ())
    return {
        name: layout[name].shape[0] if count_scales(_whole(family, place).shape) > 1 else 1
        for name, place in places(family, submodel).items()
    }


def encoded_layout(layout: Layout, scales: Mapping[str, int], form: WireFormat) -> Layout:
    """Return the tensors of a message.

    Args:
        layout: what travels.
        scales: those of it that are made smaller, with the number of their scales.
        form: the format.
    """
    dtype = DTYPES[form]
    encoded = dict(layout) | {name: TensorInfo(layout[name].shape, dtype) for name in scales}
    if form == "int8" and scales:
        encoded[SCALES] = TensorInfo((sum(scales.values()),), torch.float32)
    return encoded


def travel_bytes(
    family: Family, submodel: int, sets: Iterable[str] = (), form: WireFormat = "float32"
) -> int:
    """Return the bytes of a submodel's weights and of the sets that travel with them, one way."""
    layout = travel_layout(family, submodel, sets)
    encoded = encoded_layout(layout, submodel_scales(family, submodel), form)
    return sum(info.nbytes for info in encoded.values())


def tied(family: Family) -> dict[str, str]:
    """Return, for names that are one parameter with another name, the first of its names.

    What is one must stay one: its names are rounded alike.
    """
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, parameter in family.meta_module(len(family)).named_parameters(remove_duplicate=False):
        known = first.setdefault(id(parameter), name)
        if known != name:
            names[name] = known
    return names
