"""Which submodels hold which elements: the coverage that NeFedAvg and its convergence rest on."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product

from nefl.errors import NestingError
from nefl.nesting.spec import Family


@dataclass(frozen=True, slots=True)
class Cell:
    """A box of elements of one global tensor that the same submodels hold.

    Attributes:
        box: where it lies, to index the tensor with.
        holders: the submodels, from 1, that hold its elements.
        numel: how many elements it has.
    """

    box: tuple[slice, ...]
    holders: frozenset[int]
    numel: int


@lru_cache(maxsize=4096)
def cells(shape: tuple[int, ...], corners: tuple[tuple[int, tuple[int, ...]], ...]) -> list[Cell]:
    """Cut a global shape into cells, given each holder's number and the shape of its corner.

    Corners need not nest in one order: a submodel may be the widest in one axis and narrow in
    another. Cutting every axis at every corner's edge gives boxes in which the holders are equal.
    """
    cuts = [
        sorted({0, size, *(corner[axis] for _, corner in corners)})
        for axis, size in enumerate(shape)
    ]
    found = []
    for intervals in product(*(pairwise(axis) for axis in cuts)):
        holders = frozenset(
            submodel
            for submodel, corner in corners
            if all(stop <= size for (_, stop), size in zip(intervals, corner, strict=True))
        )
        box = tuple(slice(start, stop) for start, stop in intervals)
        found.append(Cell(box, holders, math.prod(stop - start for start, stop in intervals)))
    return found


def tensor_cells(family: Family, name: str) -> list[Cell]:
    """Return the cells of one shared tensor, each with the submodels that hold it."""
    corners = tuple(
        (submodel, info.shape)
        for submodel in range(1, len(family) + 1)
        if (info := family.layout(submodel).get(name)) is not None
    )
    return cells(family.global_layout[name].shape, corners)


def shared_cells(family: Family) -> Iterator[tuple[str, Cell]]:
    """Walk the cells of all shared tensors."""
    for name in family.global_layout:
        for cell in tensor_cells(family, name):
            yield name, cell


def min_coverage(family: Family, clients: Mapping[int, int] | None = None) -> int:
    """Return the smallest number of clients that train one shared element.

    Args:
        family: the family.
        clients: how many clients train each submodel, by its number; one each if left out.
    """
    counted = dict.fromkeys(range(1, len(family) + 1), 1) if clients is None else clients
    holders = {cell.holders for _, cell in shared_cells(family)}
    return min((sum(counted.get(k, 0) for k in each) for each in holders), default=0)


def uncovered(family: Family, trained: Collection[int]) -> dict[str, int]:
    """Return how many elements of each shared tensor no trained submodel holds.

    Tensors that are covered whole are left out. `range(1, len(family))` asks what would never be
    trained if nobody could train the full model.
    """
    missing: dict[str, int] = {}
    for name, cell in shared_cells(family):
        if not cell.holders & set(trained):
            missing[name] = missing.get(name, 0) + cell.numel
    return missing


@dataclass(frozen=True, slots=True)
class ExpectedCoverage:
    """What a round covers on average.

    Attributes:
        mean: clients that train an element in a round, averaged over the shared elements.
        minimum: the same for the element that is trained least.
        untouched: the share of shared elements that a round leaves as they were.
        worst_tensor: a tensor in which the least trained element lies.
    """

    mean: float
    minimum: float
    untouched: float
    worst_tensor: str


def expected_coverage(
    family: Family, cohort_size: int, probabilities: Sequence[float]
) -> ExpectedCoverage:
    """Return the coverage to expect of a round.

    Args:
        family: the family.
        cohort_size: clients in a round, who draw their submodels independently.
        probabilities: how likely a client is to train each submodel, as from
            `tiers.submodel_probabilities`.

    Raises:
        NestingError: if the probabilities do not fit the family.
    """
    if len(probabilities) != len(family) or abs(sum(probabilities) - 1) > 1e-6:
        raise NestingError(f"probabilities: give {len(family)} numbers that sum to 1")
    total = expected = untouched = 0.0
    minimum, worst = math.inf, ""
    for name, cell in shared_cells(family):
        likely = math.fsum(probabilities[k - 1] for k in cell.holders)
        total += cell.numel
        expected += cell.numel * cohort_size * likely
        untouched += cell.numel * (1 - min(1.0, likely)) ** cohort_size
        if cohort_size * likely < minimum:
            minimum, worst = cohort_size * likely, name
    return ExpectedCoverage(expected / total, minimum, untouched / total, worst)
