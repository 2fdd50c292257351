"""What a client keeps from one of its rounds to the next: the sets that its method names.

Kept as the server's memory is: `set/shared/name` and `set/submodel/k/name`. A client that trains
other submodels in other rounds keeps the largest corner it has had; where it has trained nothing
there are zeros.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from nefl.errors import RunError
from nefl.nesting.corners import corner
from nefl.nesting.rolling import scaled_axes
from nefl.nesting.sets import set_layout
from nefl.nesting.spec import Family
from nefl.state import Tensors


class Keeper(Protocol):
    """Where one client's memory lies while it trains one task."""

    def load(self) -> tuple[int, Tensors] | None:
        """Return what the client kept last and in which round; nothing if it never did.

        Raises:
            RunError: if it cannot be read.
        """

    def save(self, tensors: Tensors) -> None:
        """Keep what the client has after this round.

        Raises:
            RunError: if that cannot be done.
        """


def recall(
    kept: Tensors, family: Family, submodel: int, sets: Iterable[str]
) -> dict[str, dict[str, Tensor]]:
    """Return a submodel's part of what a client kept; zeros where it kept nothing."""
    layout, own = set_layout(family, submodel), family.own_names(submodel)
    found: dict[str, dict[str, Tensor]] = {each: {} for each in sets}
    for each, tensors in found.items():
        for name, info in layout.items():
            part = torch.zeros(info.shape, dtype=info.dtype)
            old = kept.get(_key(each, submodel, name, own))
            if old is not None:
                _overlay(part, old, name)
            tensors[name] = part
    return found


def renew(
    kept: Tensors, family: Family, submodel: int, now: Mapping[str, Tensors], *, whole: bool = False
) -> dict[str, Tensor]:
    """Return what a client keeps after it has trained a submodel.

    Args:
        kept: what it kept before.
        family: the family.
        submodel: what it trained.
        now: the sets as they are after training.
        whole: whether shared tensors are kept at global size, as rolling windows need them.
    """
    own = family.own_names(submodel)
    renewed = dict(kept)
    for each, tensors in now.items():
        for name, tensor in tensors.items():
            key, part = _key(each, submodel, name, own), tensor.detach().cpu()
            old = kept.get(key)
            shape = tuple(part.shape)
            if whole and name not in own:
                shape = family.global_layout[name].shape
            if old is not None and old.ndim == part.ndim:
                shape = tuple(map(max, shape, old.shape))
            large = torch.zeros(shape, dtype=part.dtype)
            if old is not None:
                _overlay(large, old, name)
            large[corner(part.shape)] = part
            renewed[key] = large
    return renewed


def roll_kept(kept: Tensors, family: Family, rounds: int) -> dict[str, Tensor]:
    """Return what was kept at global size, its channels where they are so many rounds later."""
    rolled = dict(kept)
    for key, tensor in kept.items():
        axes = scaled_axes(family, key.split("/", 2)[2])
        rolled[key] = tensor.roll((-rounds,) * len(axes), axes) if axes else tensor
    return rolled


def _key(each: str, submodel: int, name: str, own: frozenset[str]) -> str:
    return f"{each}/submodel/{submodel}/{name}" if name in own else f"{each}/shared/{name}"


def _overlay(into: Tensor, old: Tensor, name: str) -> None:
    """Copy what two tensors have in common at their leading corner."""
    if old.ndim != into.ndim or old.dtype != into.dtype:
        raise RunError(
            f"a client's memory of {name} is {old.dtype} with {old.ndim} axes, expected "
            f"{into.dtype} with {into.ndim}: it belongs to another model; start another run"
        )
    common = corner(map(min, into.shape, old.shape))
    into[common] = old[common]
