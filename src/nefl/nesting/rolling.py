"""Rolling windows (FedRolex): each round other channels come first.

A window of channels is the leading corner of the rolled tensor. So the whole state is rolled by
one channel before a round, and everything else stays as it is: corners, averages, checkpoints.
Channels that belong together sit at the same place in every tensor, so rolling them all changes
their order, and nothing that the full model computes.

Every channel comes into every window in turn. Of a tensor with two channel axes, which move in
step, a window below half the width never holds the pairs that are far apart: wider ones do.
"""

from nefl.errors import NestingError
from nefl.nesting.spec import Family
from nefl.state import ServerState


def scaled_axes(family: Family, name: str) -> tuple[int, ...]:
    """Return the axes of a shared tensor on which some submodel holds less than all."""
    whole = family.global_layout[name].shape
    parts = (family.layout(k).get(name) for k in range(1, len(family) + 1))
    shapes = [part.shape for part in parts if part is not None]
    return tuple(
        axis for axis, size in enumerate(whole) if any(shape[axis] < size for shape in shapes)
    )


def roll(state: ServerState, family: Family) -> ServerState:
    """Move every channel one place forward, the first to the end.

    Raises:
        NestingError: if submodels keep tensors for themselves, whose channels nobody could roll.
    """
    if any(state.per_submodel):
        raise NestingError(
            "rolling windows: submodels of this family keep tensors of their own; share all of "
            "them (per_submodel=()), as HeteroFL and FedRolex do"
        )
    shared = {}
    for name, tensor in state.shared.items():
        axes = scaled_axes(family, name)
        shared[name] = tensor.roll((-1,) * len(axes), axes) if axes else tensor
    return ServerState(state.round_number, shared, state.per_submodel)
