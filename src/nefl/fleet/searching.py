"""The best member for a budget, among all that can be cut out of a trained family.

Members are cut, their norms measured anew, and scored on test examples. Which are tried is decided
by evolution: the better half of a generation has the next one's members as children. Half of the
test examples decide; the other half says what the winner is worth, as it did not choose it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from nefl.artifacts.checkpoint import state_sha256
from nefl.artifacts.searched import Journal
from nefl.config.learning import LORA
from nefl.elastic.adopt import cut
from nefl.elastic.budget import Budget, Cost
from nefl.elastic.file import TrainedFamily
from nefl.elastic.model import measure_latency
from nefl.engines.tuning import tuned_process
from nefl.errors import ConfigError
from nefl.export.cutting import CALIBRATION, calibration_batches
from nefl.export.fold import fold
from nefl.export.source import Source, open_run, predict_batches
from nefl.fleet.space import Genes, Space
from nefl.measured import MeasuredBy
from nefl.methods import method_of
from nefl.nesting.inference import inference_memory
from nefl.nesting.profile import count_frozen, count_macs, count_params
from nefl.nesting.spec import build_on_meta
from nefl.references import is_reference
from nefl.seeds import Purpose, generator_for

EXAMPLES = 1000
"""Test examples that are used, half of them to choose."""

TRIES = 40
"""How often a member is made smaller, or another drawn, before a place is left empty."""

WORST = 1e30
"""A score that stands for what is no number."""

Progress = Callable[[int, int, "Scored | None"], None]
"""Told how many members are scored, how many will be, and the best so far."""


@dataclass(frozen=True)
class Scored:
    """A member that was scored.

    Attributes:
        genes: which it is.
        member: the same as `nefl export --member` takes it.
        cost: what it costs.
        score: the run's most important metric, on the examples that choose.
        trained: the number of the trained submodel that it is; 0 if it was not trained.
    """

    genes: Genes
    member: str
    cost: Cost
    score: float
    trained: int = 0


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
        laboratory = _Laboratory(source, Path(run), budget, examples)
        rng = generator_for(seed, Purpose.SEARCH)
        total = population * generations
        tell = progress or (lambda _done, _total, _best: None)
        tried = laboratory.first(population, rng, lambda n, b: tell(n, total, b))
        for _ in range(generations - 1):
            parents = laboratory.ranked(tried)[: max(2, population // 2)]
            for _ in range(population):
                child = laboratory.child(parents, tried, rng)
                if child is not None:
                    tried[child.genes] = child
                tell(len(tried), total, laboratory.ranked(tried)[0])
        winner = laboratory.ranked(tried)[0]
        return Found(
            winner,
            laboratory.check(winner),
            tuple(tried.values()),
            laboratory.metric,
            laboratory.examples,
        )


class _Laboratory:
    """Cuts, measures and scores members of one run."""

    def __init__(self, source: Source, run: Path, budget: Budget, examples: int) -> None:
        setting = source.setting
        model, family = setting.config.model, setting.family
        row, own = method_of(model), is_reference(model.name)
        if model.name == LORA or row.exits != "none":
            raise ConfigError(
                f"{model.name} {model.method}: adapters and early classifiers cannot be searched; "
                "nefl export --fits chooses among the trained submodels"
            )
        self.space = Space(
            family.specs[-1].blocks,
            deep=own or row.scaling not in ("width", "none"),
            wide=own or row.scaling not in ("depth", "none"),
        )
        self._source, self._budget, self._family = source, budget, family
        numbers = tuple(range(1, len(family) + 1))
        self._trained = TrainedFamily(source.card(numbers), family, source.state)
        self._batches = calibration_batches(source)
        inputs, target = source.test_batch(examples)
        self._choosing, self._checking = ((inputs[half::2], target[half::2]) for half in (0, 1))
        self.examples = len(self._choosing[0])
        primary = setting.task.primary
        self.metric = MeasuredBy(primary.name, primary.better, percent=primary.percent)
        self._journal = Journal(
            run,
            {
                "state": state_sha256(source.state),
                "metric": primary.name,
                "better": primary.better,
                "examples": self.examples,
                "calibration": CALIBRATION,
            },
        )

    def first(
        self, population: int, rng: np.random.Generator, tell: Callable[[int, Scored], None]
    ) -> dict[Genes, Scored]:
        """Score the first generation: what was trained and fits, and what is drawn.

        Raises:
            ConfigError: if not even the smallest member fits.
        """
        least = self._costed(self.space.least)
        if least is None or not self._score(self.space.least, least).cost.fits(self._budget):
            raise self._nothing_fits()
        tried: dict[Genes, Scored] = {}
        starts = [self.space.near(spec) for spec in self._family.specs]
        while len(tried) < population:
            genes = starts.pop() if starts else self.space.drawn(rng)
            found = self._fitting(genes, tried, rng)
            if found is None and not starts:
                break
            if found is not None:
                tried[found.genes] = found
                tell(len(tried), self.ranked(tried)[0])
        return tried

    def ranked(self, tried: dict[Genes, Scored]) -> list[Scored]:
        """Return members, best first; of equal ones the one with fewer MACs."""
        sign = -1 if self.metric.better == "up" else 1
        return sorted(tried.values(), key=lambda s: (sign * s.score, s.cost.macs))

    def child(
        self, parents: Sequence[Scored], tried: dict[Genes, Scored], rng: np.random.Generator
    ) -> Scored | None:
        """Score a new member that two parents have; None if no new one that fits was found."""
        one, other = (parents[int(i)].genes for i in rng.integers(len(parents), size=2))
        return self._fitting(self.space.crossed(one, other, rng), tried, rng)

    def _fitting(
        self, genes: Genes, tried: dict[Genes, Scored], rng: np.random.Generator
    ) -> Scored | None:
        """Make a member smaller until it fits and is new, and score it."""
        for _ in range(TRIES):
            if genes not in tried:
                cost = self._costed(genes)
                if cost is not None:
                    found = self._score(genes, cost)
                    if found.cost.fits(self._budget):
                        return found
            smaller = self.space.smaller(genes, rng)
            genes = self.space.drawn(rng) if smaller == genes else smaller
        return None

    def _costed(self, genes: Genes) -> Cost | None:
        """Return what a member costs but for its latency; None if that is above the budget."""
        known = self._journal.known.get(self.space.text(genes))
        untimed = replace(self._budget, latency=None)
        if known is not None:
            cost = Cost(known["params"], known["macs"], known["memory"])
            return cost if cost.fits(untimed) else None
        module = build_on_meta(self._family.build, self.space.spec(genes))
        params = float(count_params(module) + count_frozen(module))
        # The cheapest to count first: most members that do not fit show it there.
        if self._budget.params is not None and params > self._budget.params:
            return None
        signature = self._source.setting.task.signature
        macs = float(count_macs(module, signature)[1])
        if self._budget.macs is not None and macs > self._budget.macs:
            return None
        cost = Cost(params, macs, float(inference_memory(module, signature)))
        return cost if cost.fits(untimed) else None

    def _score(self, genes: Genes, cost: Cost) -> Scored:
        text = self.space.text(genes)
        specs = self._family.specs
        spec = self.space.spec(genes)
        trained = specs.index(spec) + 1 if spec in specs else 0
        line = self._journal.known.get(text)
        timed = self._budget.latency is not None
        if line is None or (timed and line.get("latency") is None):
            module = cut(self._trained, spec, self._batches)
            score = line["score"] if line else self._measure(module, *self._choosing)
            latency = self._latency(module) if timed else None
            line = {"member": text, "trained": trained, "score": score, "latency": latency,
                    "params": cost.params, "macs": cost.macs, "memory": cost.memory}  # fmt: skip
            self._journal.add(line)
        seconds: Any = line.get("latency") if timed else None
        return Scored(genes, text, replace(cost, latency=seconds), float(line["score"]), trained)

    def _latency(self, module: nn.Module) -> float:
        network = fold(module).network
        example = self._source.setting.task.signature.example(1)
        return measure_latency(lambda: network(example))

    def _measure(self, module: nn.Module, inputs: Tensor, target: Tensor) -> float:
        task = self._source.setting.task
        outputs = predict_batches(module, inputs)
        value = float(task.primary.value(task.measure(task.primary, outputs, target)))
        # What is no number is worse than any: a member may be cut so that nothing comes out.
        worst = -WORST if self.metric.better == "up" else WORST
        return value if math.isfinite(value) else worst

    def check(self, scored: Scored) -> float:
        """Return the metric of a member on the examples that did not choose."""
        module = cut(self._trained, self.space.spec(scored.genes), self._batches)
        return self._measure(module, *self._checking)

    def _nothing_fits(self) -> ConfigError:
        module = build_on_meta(self._family.build, self.space.spec(self.space.least))
        signature = self._source.setting.task.signature
        least = {
            "params": count_params(module),
            "macs": count_macs(module, signature)[1],
            "memory": inference_memory(module, signature),
        }
        shown = ", ".join(f"{name} {value}" for name, value in least.items())
        return ConfigError(
            f"no member fits: the smallest ({self.space.text(self.space.least)}) has {shown}; "
            "allow more" + (", or a longer latency" if self._budget.latency is not None else "")
        )
