"""Cutting submodels out of global tensors and putting them back.

The one rule: every tensor of a submodel is the leading corner of the global tensor of its name.
"""

from collections.abc import Iterable, Mapping

from torch import Tensor

from nefl.nesting.spec import Family
from nefl.state import ServerState, Tensors


def corner(shape: Iterable[int]) -> tuple[slice, ...]:
    """Index the leading corner of that shape; of a scalar, all of it."""
    return tuple(slice(size) for size in shape)


def extract(state: ServerState, family: Family, submodel: int) -> dict[str, Tensor]:
    """Return the tensors of a submodel, numbered from 1, in the order of its state dict.

    Shared tensors are views into the state: nothing is copied, so do not train them in place.
    """
    layout = family.layout(submodel)
    own = state.per_submodel[submodel - 1]
    return {
        name: own[name] if name in own else state.shared[name][corner(info.shape)]
        for name, info in layout.items()
    }


def scatter(tensors: Tensors, into: Mapping[str, Tensor]) -> None:
    """Write each tensor over the leading corner of the tensor of its name in `into`."""
    for name, tensor in tensors.items():
        into[name][corner(tensor.shape)].copy_(tensor)
