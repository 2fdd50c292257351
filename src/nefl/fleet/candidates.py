"""All members that a design chooses from: leading blocks of each stage, and a width.

Costs of blocks add up, so few members are counted: for each width the shallowest one, and one with
a block more in each stage. What is chosen in the end is counted anew, exactly.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from nefl.config import MemberConfig
from nefl.fleet.costs import COLUMNS, Costs, Training, cost_of_spec
from nefl.models.rules import BALANCE, depths, leading
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Blocks, Family, SubmodelSpec
from nefl.server.devices import Numbers

WIDTHS = tuple(sixteenths / 16 for sixteenths in range(1, 17))
"""The widths that members of a network may have."""

_RUN = COLUMNS.index("inference_memory")

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Candidates:
    """Members to choose from, an entry for each; the last is the full model.

    Attributes:
        full: the blocks of the full model.
        counts: how many leading blocks of each stage each keeps, [members, stages].
        widths: its width.
        costs: what it costs.
        rank: the rank of the full model's adapters; 0 where there are none.
    """

    full: Blocks
    counts: npt.NDArray[np.int64]
    widths: Numbers
    costs: Costs
    rank: int = 0

    def __len__(self) -> int:
        return len(self.widths)

    @cached_property
    def place(self) -> Numbers:
        """Where each stands: the share of blocks of each stage, and the width."""
        shares = self.counts / np.array([len(stage) for stage in self.full])
        return np.concatenate([shares, self.widths[:, None]], axis=1)

    def inside(
        self, large: int | npt.NDArray[np.int64], small: npt.NDArray[np.int64] | None = None
    ) -> Mask:
        """Return which candidates are inside one, or inside each of some, [large, small].

        Args:
            large: the candidate, or several.
            small: those that are asked for; all if left out.
        """
        asked = self.place if small is None else self.place[small]
        return np.asarray((asked <= self.place[large][..., None, :]).all(axis=-1))

    def around(self, index: int) -> Mask:
        """Return which candidates one is inside of, itself not among them."""
        found: Mask = (self.place >= self.place[index]).all(axis=-1)
        found[index] = False
        return found

    def spec(self, index: int) -> SubmodelSpec:
        """Return the spec of a candidate."""
        return SubmodelSpec(leading(self.counts[index], self.full), float(self.widths[index]))

    def member(self, index: int) -> MemberConfig:
        """Return a candidate as a recipe lists it."""
        counts = tuple(map(int, self.counts[index]))
        whole = all(n == len(stage) for n, stage in zip(counts, self.full, strict=True))
        if self.rank:
            rank = math.ceil(self.widths[index] * self.rank - 1e-9)
            nested = len(self.full[0]) > 1
            return MemberConfig(rank=rank, blocks=counts if nested else None)
        return MemberConfig(float(self.widths[index]), blocks=None if whole else counts)

    def describe(self, index: int) -> str:
        """Say what a candidate is, as in `width 0.5, blocks 1 1 2`."""
        blocks = " ".join(map(str, self.counts[index]))
        member = self.member(index)
        if member.rank is not None:
            return f"rank {member.rank}" + (f", {blocks} blocks" if member.blocks else "")
        return f"width {self.widths[index]:g}, blocks {blocks}"


def size_score(candidates: Candidates) -> Numbers:
    """Return a score for each candidate by its size alone; that of the full model is 1.

    It is the mean (geometric) of its shares of parameters and of MACs: parameters alone would
    speak for late blocks, which are wide, MACs alone for early ones, whose maps are large. Of
    equal sizes the more even one, in width and the stages' depths, has a little more.
    """
    costs = candidates.costs
    shares = costs.params / costs.params[-1] * (costs.macs / costs.macs[-1])
    uneven = candidates.place.max(axis=1) - candidates.place.min(axis=1)
    score: Numbers = np.sqrt(shares) * (1 - BALANCE * uneven**2)
    return score


def list_candidates(
    family: Family,
    signature: Signature,
    *,
    widths: Sequence[float],
    deep: bool,
    training: Training,
    alike: bool,
    rank: int = 0,
) -> Candidates:
    """List the members of a family's full model, with their costs.

    Args:
        family: its builder is asked; its last spec is the full model.
        signature: what it takes and gives.
        widths: the widths to choose from, rising, the last one 1.
        deep: whether blocks may be left out.
        training: how they are trained.
        alike: whether all blocks of a stage but its first cost the same.
        rank: the rank of the full model's adapters; 0 where there are none.
    """
    full = family.specs[-1].blocks
    every = depths(full) if deep else [tuple(map(len, full))]
    counts = np.array(every, dtype=np.int64)
    tables = []
    for width in widths:

        def cost(kept: Sequence[int], width: float = width) -> tuple[Numbers, int]:
            spec = SubmodelSpec(leading(kept, full), width)
            return cost_of_spec(family, spec, signature, training)

        tables.append(_by_depth(cost, counts, alike=alike))
    table = np.concatenate(tables)
    place = np.column_stack(
        [np.tile(counts, (len(widths), 1)), np.repeat(np.asarray(widths), len(counts))]
    )
    keep = _distinct(place[:, :-1], table)
    return Candidates(
        full,
        place[keep, :-1].astype(np.int64),
        place[keep, -1],
        Costs.of_table(table[keep]),
        rank,
    )


def _by_depth(
    cost: Callable[[Sequence[int]], tuple[Numbers, int]],
    counts: npt.NDArray[np.int64],
    *,
    alike: bool,
) -> Numbers:
    """Return the costs at one width for all numbers of blocks, a row each.

    All costs of blocks add up but one: what is alive at once in a prediction, besides the weights,
    is that of the block which needs most.

    Args:
        cost: counts the costs of numbers of blocks, and the bytes of their weights.
        counts: the numbers of blocks.
        alike: whether all blocks of a stage but its first cost the same.
    """
    least = [int(each) for each in counts.min(axis=0)]
    base, weights = cost(least)
    table = np.tile(base, (len(counts), 1))
    held = np.full(len(counts), float(weights))
    alive = np.full(len(counts), base[_RUN] - weights)
    for stage, lowest in enumerate(least):
        more = sorted(set(map(int, counts[:, stage])) - {lowest})
        # Of blocks that cost the same one is counted, and stands for the others.
        probes = ([lowest + 1] if alike else more) if more else []
        found = {n: cost([*least[:stage], n, *least[stage + 1 :]]) for n in probes}
        for n in more:
            here = counts[:, stage] == n
            times = 1 if n in found else n - lowest
            probe, its_weights = found.get(n) or found[lowest + 1]
            table[here] += times * (probe - base)
            held[here] += times * (its_weights - weights)
            alive[here] = np.maximum(alive[here], probe[_RUN] - its_weights)
    table[:, _RUN] = held + alive
    return table


def _distinct(counts: Numbers, table: Numbers) -> npt.NDArray[np.int64]:
    """Return which entries to keep: of those that are one and the same module, the widest."""
    rows = np.column_stack([counts, table])[::-1]
    _, first = np.unique(rows, axis=0, return_index=True)
    return np.sort(len(rows) - 1 - first)
