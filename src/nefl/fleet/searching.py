"""The best member for a budget, among all that can be cut out of a trained family.

Members are cut, their norms measured anew, and scored on test examples. Which are tried is decided
by evolution: the better half of a generation has the next one's members as children. Half of the
test examples decide; the other half says what the winner is worth, as it did not choose it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nefl.elastic.budget import Budget
from nefl.engines.tuning import tuned_process
from nefl.errors import ConfigError
from nefl.export.source import open_run
from nefl.fleet.laboratory import Laboratory, Scored
from nefl.fleet.space import Genes
from nefl.measured import MeasuredBy
from nefl.nesting.spec import SubmodelSpec
from nefl.seeds import Purpose, generator_for

EXAMPLES = 1000
"""Test examples that are used, half of them to choose."""

TRIES = 40
"""How often a member is made smaller, or another drawn, before a place is left empty."""

Progress = Callable[[int, int, Scored | None], None]
"""Told how many members are scored, how many will be, and the best so far."""


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        best: the best member within the budget.
        checked: its metric on the examples that did not choose it.
        scored: all members that were scored, in their order.
        metric: what was measured.
        examples: how many examples chose; as many others checked.
    """

    best: Scored
    checked: float
    scored: tuple[Scored, ...]
    metric: MeasuredBy
    examples: int


def search_run(
    run: str | Path,
    budget: Budget,
    *,
    population: int = 16,
    generations: int = 6,
    examples: int = EXAMPLES,
    seed: int = 0,
    best: bool = False,
    trust_code: bool = False,
    progress: Progress | None = None,
) -> Found:
    """Find the best member of a run for a budget.

    What was scored is noted in the run's folder: a search that was stopped goes on from there when
    it is begun again, and another budget has the scores for nothing.

    Args:
        run: the run's folder.
        budget: what the member may cost; latency is measured here, in torch.
        population: members of a generation.
        generations: how many there are.
        examples: test examples that are used, half of them to choose.
        seed: where everything random comes from.
        best: the best checkpoint instead of the newest.
        trust_code: import what the run names, though it was never named on this machine.
        progress: told after every member.

    Raises:
        NeflError: if there is no such run, or nothing fits the budget.
    """
    if population < 2 or generations < 1 or examples < 2:
        raise ConfigError(
            f"population {population}, generations {generations}, examples {examples}: give 2 or "
            "more, 1 or more, and 2 or more"
        )
    source = open_run(run, best=best, trust_code=trust_code)
    with tuned_process(source.setting.config.engine.threads):
        laboratory = _Evolution(source, Path(run), budget, examples)
        rng = generator_for(seed, Purpose.SEARCH)
        total = population * generations
        tell = progress or (lambda _done, _total, _best: None)
        tried = laboratory.first(population, rng, lambda n, b: tell(n, total, b))
        for _ in range(generations - 1):
            parents = laboratory.ranked(tried.values())[: max(2, population // 2)]
            for _ in range(population):
                child = laboratory.child(parents, tried, rng)
                if child is not None:
                    tried[child.member] = child
                tell(len(tried), total, laboratory.ranked(tried.values())[0])
        winner = laboratory.ranked(tried.values())[0]
        return Found(
            winner,
            laboratory.check(winner),
            tuple(tried.values()),
            laboratory.metric,
            laboratory.examples,
        )


class _Evolution(Laboratory):
    """Decides which members are tried."""

    def first(
        self, population: int, rng: np.random.Generator, tell: Callable[[int, Scored], None]
    ) -> dict[str, Scored]:
        """Score the first generation: all that was trained and fits, and what is drawn.

        What was trained and does not fit is made smaller; its widths need be none of the space's.

        Raises:
            ConfigError: if not even the smallest member fits.
        """
        least = self._least()
        tried: dict[str, Scored] = {}

        def take(found: Scored) -> None:
            tried[found.member] = found
            tell(len(tried), self.ranked(tried.values())[0])

        starts = []
        for spec in reversed(self.family.specs):
            found = self._scored(spec)
            if found is None:
                starts.append(self.space.near(spec))
            else:
                take(found)
        while len(tried) < population:
            genes = starts.pop(0) if starts else self.space.drawn(rng)
            found = self._fitting(genes, tried, rng)
            if found is None and not starts:
                break
            if found is not None:
                take(found)
        return tried or {least.member: least}

    def _least(self) -> Scored:
        """Score the smallest member.

        Raises:
            ConfigError: if it does not fit.
        """
        spec = self.space.spec(self.space.least)
        cost = self.costed(spec)
        if cost is None:
            raise self.nothing_fits()
        found = self.score(spec, cost)
        if not found.cost.fits(self.budget):
            raise self.nothing_fits(found.cost.latency)
        return found

    def child(
        self, parents: Sequence[Scored], tried: Mapping[str, Scored], rng: np.random.Generator
    ) -> Scored | None:
        """Score a new member that two parents have; None if no new one that fits was found."""
        drawn = rng.integers(len(parents), size=2)
        one, other = (self.space.near(parents[int(i)].spec) for i in drawn)
        return self._fitting(self.space.crossed(one, other, rng), tried, rng)

    def _scored(self, spec: SubmodelSpec) -> Scored | None:
        """Score a member; None if it does not fit."""
        cost = self.costed(spec)
        found = None if cost is None else self.score(spec, cost)
        return found if found is not None and found.cost.fits(self.budget) else None

    def _fitting(
        self, genes: Genes, tried: Mapping[str, Scored], rng: np.random.Generator
    ) -> Scored | None:
        """Make a member smaller until it fits and is new, and score it."""
        for _ in range(TRIES):
            spec = self.space.spec(genes)
            found = None if self.space.text(spec) in tried else self._scored(spec)
            if found is not None:
                return found
            smaller = self.space.smaller(genes, rng)
            genes = self.space.drawn(rng) if smaller == genes else smaller
        return None
