"""The members that can be cut out of a family: leading blocks and a width for each stage."""

import json
from dataclasses import dataclass

import numpy as np

from nefl.models.rules import depths, leading
from nefl.nesting.spec import Blocks, SubmodelSpec

STEPS = 16
"""Widths are so many-th parts."""

Genes = tuple[int, ...]
"""How many leading blocks each stage keeps, and then how many parts of its width."""


@dataclass(frozen=True)
class Space:
    """All such members of one model.

    Attributes:
        full: the blocks of the full model.
        deep: whether members may leave blocks out.
        wide: whether they may be narrower.
    """

    full: Blocks
    deep: bool = True
    wide: bool = True

    @property
    def least(self) -> Genes:
        """The smallest member."""
        counts = depths(self.full)[0] if self.deep else tuple(map(len, self.full))
        return (*counts, *([1 if self.wide else STEPS] * len(self.full)))

    @property
    def most(self) -> Genes:
        """The full model."""
        return (*map(len, self.full), *([STEPS] * len(self.full)))

    def spec(self, genes: Genes) -> SubmodelSpec:
        """Return the spec of a member."""
        stages = len(self.full)
        widths = tuple(part / STEPS for part in genes[stages:])
        width = widths[0] if len(set(widths)) == 1 else widths
        return SubmodelSpec(leading(genes[:stages], self.full), width)

    def text(self, spec: SubmodelSpec) -> str:
        """Write a member, of this space or not, as `nefl export --member` takes it."""
        counts = _counts(spec)
        plain = spec.blocks == leading(counts, self.full)
        said = f"width = {json.dumps(spec.width)}, blocks = "
        said += json.dumps(counts if plain else spec.blocks)
        inner = spec.inner_width
        return said if inner is None else f"{said}, inner_width = {json.dumps(inner)}"

    def near(self, spec: SubmodelSpec) -> Genes:
        """Return the member that comes nearest to a spec and has no less of anything."""
        counts = _counts(spec)
        parts = [-int(-spec.stage_width(i) * STEPS // 1) for i in range(len(self.full))]
        return self._bounded((*counts, *parts))

    def drawn(self, rng: np.random.Generator) -> Genes:
        """Draw a member: of any size, its parts more or less alike."""
        size = rng.random()
        low, high = np.array(self.least), np.array(self.most)
        found = low + (high - low) * size + rng.normal(0, 0.15, len(low)) * (high - low)
        return self._bounded(tuple(round(float(each)) for each in found))

    def crossed(self, one: Genes, other: Genes, rng: np.random.Generator) -> Genes:
        """Return a member with each part of one of two, and one or two parts changed."""
        mixed = [a if rng.random() < 0.5 else b for a, b in zip(one, other, strict=True)]
        for _ in range(1 + int(rng.integers(2))):
            place = int(rng.integers(len(mixed)))
            mixed[place] += int(rng.choice([-2, -1, 1, 2]))
        return self._bounded(tuple(mixed))

    def smaller(self, genes: Genes, rng: np.random.Generator) -> Genes:
        """Return a member with less of one part; the smallest stays as it is."""
        pairs = enumerate(zip(genes, self.least, strict=True))
        able = [place for place, (now, least) in pairs if now > least]
        if not able:
            return genes
        place = int(rng.choice(able))
        less = 1 if place < len(self.full) else int(rng.integers(1, 4))
        return self._bounded((*genes[:place], genes[place] - less, *genes[place + 1 :]))

    def _bounded(self, genes: Genes) -> Genes:
        bounds = zip(genes, self.least, self.most, strict=True)
        return tuple(min(max(now, low), high) for now, low, high in bounds)


def _counts(spec: SubmodelSpec) -> list[int]:
    """Return how many blocks of each stage a member keeps."""
    return [sum(map(bool, stage)) for stage in spec.blocks]
