"""Small first: a submodel that is trained for the first time enters without a jump.

Until then nobody has trained what only it holds. It takes over the norms and step sizes of the
largest submodel inside it; blocks that are new to it begin with step size 0, and channels that are
new hand on nothing to those that were there: their outgoing weights begin at 0. So it does just
what the one inside it does, if that holds all that was trained before; else it is near to it.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from nefl.nesting.corners import corner
from nefl.nesting.inside import members_inside
from nefl.nesting.modules import StepSize
from nefl.nesting.spec import Family
from nefl.state import ServerState

_CONNECTIONS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Modules whose weights go from channels on axis 1 to channels on axis 0. Others say themselves, as
`input_axes`, by which axes of their parameters channels come in.
"""


@torch.no_grad()
def unlock(state: ServerState, family: Family, before: int, now: int) -> ServerState:
    """Return the state in which further submodels are ready to be trained.

    Args:
        state: the state after rounds in which submodels up to `before` were trained.
        family: its family.
        before: the largest submodel that was trained so far.
        now: the largest that shall be trained from here on.
    """
    for submodel in range(before + 1, now + 1):
        known = range(1, submodel)
        shared, own = dict(state.shared), list(state.per_submodel)
        own[submodel - 1] = mine = _taken_over(state, family, submodel)
        for name, axes in _connections(family, submodel).items():
            for tensors in (shared, mine):
                if name in tensors:
                    tensors[name] = _without_new_inputs(
                        tensors[name], name, axes, family, submodel, known
                    )
        state = replace(state, shared=shared, per_submodel=tuple(own))
    return state


def _connections(family: Family, submodel: int) -> dict[str, tuple[int, ...]]:
    """Return the weights of a submodel that go from channels to channels, with the axes of the
    channels that they come from.
    """
    found: dict[str, tuple[int, ...]] = {}
    for prefix, child in family.meta_module(submodel).named_modules():
        grouped = getattr(child, "groups", 1) > 1
        plain = {"weight": (1,)} if isinstance(child, _CONNECTIONS) and not grouped else {}
        for name, axes in getattr(child, "input_axes", plain).items():
            found[f"{prefix}.{name}"] = axes
    return found


def _without_new_inputs(
    whole: Tensor,
    name: str,
    axes: Sequence[int],
    family: Family,
    submodel: int,
    known: Sequence[int],
) -> Tensor:
    """Return a weight whose new inputs do not reach outputs that were there."""
    corners = [info.shape for k in known if (info := family.layout(k).get(name)) is not None]
    if not corners:
        return whole  # of a new block: its step size is 0
    shape = family.layout(submodel)[name].shape
    old = [max(sizes) for sizes in zip(*corners, strict=True)]
    fresh = torch.zeros(whole.shape, dtype=torch.bool, device=whole.device)
    fresh[corner(n if axis in axes else min(n, old[axis]) for axis, n in enumerate(shape))] = True
    for trained in corners:  # widths need not rise with the numbers
        fresh[corner(trained)] = False
    return whole.masked_fill(fresh, 0)


def _taken_over(state: ServerState, family: Family, submodel: int) -> dict[str, Tensor]:
    """Return what a submodel has for itself, taken over from the largest one inside it.

    Where none is inside, the next smaller one is the nearest there is. Channels that this one lacks
    come from others that were trained before, if those have them.
    """
    nearest = (members_inside(family, submodel) or (submodel - 1,))[-1]
    mine = {name: tensor.clone() for name, tensor in state.per_submodel[submodel - 1].items()}
    for k in (*range(1, submodel), nearest):  # the last has the last word
        theirs = state.per_submodel[k - 1]
        for name in mine.keys() & theirs.keys():
            if mine[name].ndim == theirs[name].ndim:
                common = corner(map(min, mine[name].shape, theirs[name].shape))
                mine[name][common] = theirs[name][common]
    for name in _step_names(family, submodel) - state.per_submodel[nearest - 1].keys():
        mine[name].zero_()
    return mine


def _step_names(family: Family, submodel: int) -> set[str]:
    return {
        f"{prefix}.{name}"
        for prefix, child in family.meta_module(submodel).named_modules()
        if isinstance(child, StepSize)
        for name in child.state_dict()
    }
