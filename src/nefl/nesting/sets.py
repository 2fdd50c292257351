"""Sets: families of tensors that lie as the parameters do, one for each of them.

What a server's step remembers, and what clients keep, receive and send beside the weights. A
submodel's part of a set is the leading corner of the global one, or its own where its parameter is:
the rule that weights follow. Statistics have no place in a set, nor have whole numbers.
"""

from collections.abc import Iterable, Mapping

from torch import Tensor

from nefl.nesting.corners import corner, extract
from nefl.nesting.inside import extract_members, member_layout
from nefl.nesting.spec import Family, TensorInfo
from nefl.state import ServerState, Tensors

TRAVELLING = "method/"
"""What the names of sets begin with, where they travel beside the weights."""


def set_layout(family: Family, submodel: int) -> dict[str, TensorInfo]:
    """Return the tensors that a set has for a submodel, by the names of its parameters."""
    roles = family.roles(submodel)
    return {
        name: info
        for name, info in family.layout(submodel).items()
        if roles[name] == "parameter" and info.dtype.is_floating_point
    }


def shared_set_layout(family: Family) -> dict[str, TensorInfo]:
    """Return the tensors of global size that a set has, by the names of the shared parameters."""
    names: set[str] = set()
    for submodel in range(1, len(family) + 1):
        names |= set_layout(family, submodel).keys()
    return {name: info for name, info in family.global_layout.items() if name in names}


def memory_layout(family: Family, sets: Iterable[str]) -> dict[str, TensorInfo]:
    """Return all tensors of some sets, named as a server's memory has them."""
    shared = shared_set_layout(family)
    layout: dict[str, TensorInfo] = {}
    for each in sets:
        layout |= {f"{each}/shared/{name}": info for name, info in shared.items()}
        for submodel in range(1, len(family) + 1):
            own = family.own_names(submodel)
            layout |= {
                f"{each}/submodel/{submodel}/{name}": info
                for name, info in set_layout(family, submodel).items()
                if name in own
            }
    return layout


def sets_of(memory: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the sets that a server's memory has, in order."""
    return tuple(dict.fromkeys(name.partition("/")[0] for name in memory))


def extract_set(memory: Tensors, family: Family, submodel: int, name: str) -> dict[str, Tensor]:
    """Return a submodel's part of a set of a server's memory, by the names of its parameters.

    Shared tensors are views: nothing is copied.
    """
    own = family.own_names(submodel)
    return {
        key: memory[f"{name}/submodel/{submodel}/{key}"]
        if key in own
        else memory[f"{name}/shared/{key}"][corner(info.shape)]
        for key, info in set_layout(family, submodel).items()
    }


def travel_layout(family: Family, submodel: int, sets: Iterable[str]) -> dict[str, TensorInfo]:
    """Return all that travels between the server and a client, one way: weights and some sets.

    Own tensors of members that are trained within stand beside the weights as
    `member/number/name`, sets as `method/set/parameter`. Whatever carries, counts or checks
    what travels asks here.
    """
    layout = dict(family.layout(submodel)) | member_layout(family, submodel)
    for each in sets:
        of_set = set_layout(family, submodel).items()
        layout |= {f"{TRAVELLING}{each}/{name}": info for name, info in of_set}
    return layout


def extract_all(
    state: ServerState, family: Family, submodel: int, sets: Iterable[str]
) -> dict[str, Tensor]:
    """Return what goes out to a client: all of `travel_layout`, as views."""
    parts = {each: extract_set(state.memory, family, submodel, each) for each in sets}
    weights = extract(state, family, submodel) | extract_members(state, family, submodel)
    return pack(weights, parts)


def pack(weights: Tensors, sets: Mapping[str, Tensors]) -> dict[str, Tensor]:
    """Return weights and sets under the names they travel by."""
    packed = dict(weights)
    for each, tensors in sets.items():
        packed |= {f"{TRAVELLING}{each}/{name}": tensor for name, tensor in tensors.items()}
    return packed


def unpack(tensors: Tensors) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Return the weights, members' own among them, and the sets of what has travelled."""
    weights: dict[str, Tensor] = {}
    sets: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if not key.startswith(TRAVELLING):
            weights[key] = tensor
            continue
        each, _, name = key.removeprefix(TRAVELLING).partition("/")
        sets.setdefault(each, {})[name] = tensor
    return weights, sets
