"""Choosing members that nest: each kind of device the best that fits it, one inside the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np
import numpy.typing as npt

from nefl.fleet.candidates import Candidates, Mask
from nefl.server.devices import Numbers

POOL = 400
"""Candidates that are looked at for each group of kinds: those of the highest score."""


FEW = 4
"""Groups of kinds that are tried in every order, smallest member first; more in one order alone."""

ROUNDING = 1e-9
"""What sums of logarithms may miss by being added up in another order."""


@dataclass(frozen=True)
class Group:
    """Kinds of device that share a member.

    Attributes:
        kinds: their numbers.
        share: how much of the population they are.
        fits: which candidates fit all of them.
    """

    kinds: tuple[int, ...]
    share: float
    fits: Mask

    def joined(self, other: "Group") -> "Group":
        """Return both as one."""
        kinds = tuple(sorted((*self.kinds, *other.kinds)))
        return Group(kinds, self.share + other.share, self.fits & other.fits)


def choose_chain(
    candidates: Candidates, score: Numbers, groups: Sequence[Group], members: int
) -> dict[int, int]:
    """Give every kind of device a member, at most so many different ones.

    What is sought is the greatest sum of logarithms of scores, each kind counting by its share:
    a loss of a tenth counts the same for a small member as for a large one.

    Args:
        candidates: the members to choose from, the full one last.
        score: the score of each, above 0.
        groups: one for each kind; each fits some candidate, and so the smallest.
        members: how many different members there may be, the full one among them.

    Returns:
        The candidate of each kind, by the kind's number.
    """
    full = len(candidates) - 1
    whole = [group for group in groups if group.fits[full]]
    parts = [group for group in groups if not group.fits[full]]
    if members == 1:  # then all share the full model; the caller has seen that they can
        return {kind: full for group in groups for kind in group.kinds}
    _, chosen = _nest(candidates, score, parts)
    while len(set(chosen)) > members - 1:
        # Two groups share a member from here on: the two that lose least by it.
        tried = []
        for a, b in combinations(range(len(parts)), 2):
            rest = [group for i, group in enumerate(parts) if i not in (a, b)]
            fewer = [*rest, parts[a].joined(parts[b])]
            tried.append((*_nest(candidates, score, fewer), fewer))
        _, chosen, parts = max(tried, key=lambda each: each[0])
    found = {kind: full for group in whole for kind in group.kinds}
    return found | {k: c for group, c in zip(parts, chosen, strict=True) for k in group.kinds}


def _nest(
    candidates: Candidates, score: Numbers, groups: Sequence[Group]
) -> tuple[float, list[int]]:
    """Return the best chain, one candidate for each group, and its value."""
    if not groups:
        return 0.0, []
    value = np.log(score)
    best = [float(value[group.fits].max()) for group in groups]
    usual = tuple(sorted(range(len(groups)), key=lambda i: best[i]))
    total, chosen = _nest_in(usual, candidates, score, groups)
    # Whose member is inside whose is not told by what each could have by itself.
    for order in permutations(usual) if len(groups) <= FEW else ():
        other, instead = _nest_in(order, candidates, score, groups)
        if other > total + ROUNDING:
            total, chosen = other, instead
    return total, chosen


def _nest_in(
    order: Sequence[int], candidates: Candidates, score: Numbers, groups: Sequence[Group]
) -> tuple[float, list[int]]:
    """Return the best chain in which the groups' members follow each other in an order."""
    value = np.log(score)
    pools = _pools(candidates, score, [groups[i] for i in order])
    shares = [groups[i].share for i in order]
    # reached[c]: the value of the best chain that ends with the pool's candidate c.
    reached = shares[0] * value[pools[0]]
    came_from: list[npt.NDArray[np.int64]] = []
    for share, before, pool in zip(shares[1:], pools, pools[1:], strict=False):
        inside = candidates.inside(pool, before)
        sums = np.where(inside, reached, -np.inf)
        came_from.append(sums.argmax(axis=1))
        reached = sums.max(axis=1) + share * value[pool]
    place = int(reached.argmax())
    total, chain = float(reached[place]), [int(pools[-1][place])]
    for pool, origin in zip(reversed(pools[:-1]), reversed(came_from), strict=True):
        place = int(origin[place])
        chain.append(int(pool[place]))
    chain.reverse()
    by_group = dict(zip(order, chain, strict=True))
    return total, [by_group[i] for i in range(len(groups))]


def _pools(
    candidates: Candidates, score: Numbers, groups: Sequence[Group]
) -> list[npt.NDArray[np.int64]]:
    """Return the candidates to look at for each group, weakest first.

    Besides those of the highest score there is one chain that exists in any case: from the
    strongest group down, the best inside the one above.
    """
    pools = []
    above = len(candidates) - 1
    for group in reversed(groups):
        above = best_of(score, group.fits & candidates.inside(above))
        fitting = np.flatnonzero(group.fits)
        top = fitting[np.argsort(-score[fitting], kind="stable")[:POOL]]
        pools.append(np.union1d(top, [above]))
    return pools[::-1]


def best_of(score: Numbers, among: Mask) -> int:
    """Return the candidate of the highest score among some."""
    return int(np.where(among, score, -np.inf).argmax())
