"""Members that are cut out of a trained family, their norms measured anew, and scored."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nefl.artifacts.checkpoint import state_sha256
from nefl.artifacts.searched import Journal
from nefl.config.learning import LORA
from nefl.elastic.adopt import cut
from nefl.elastic.budget import Budget, Cost
from nefl.elastic.file import TrainedFamily
from nefl.elastic.model import measure_latency
from nefl.errors import ConfigError
from nefl.export.cutting import CALIBRATION, calibration_batches
from nefl.export.fold import fold
from nefl.export.source import Source, predict_batches
from nefl.fleet.space import Space
from nefl.measured import MeasuredBy
from nefl.methods import method_of
from nefl.nesting.inference import inference_memory
from nefl.nesting.profile import count_frozen, count_macs, count_params
from nefl.nesting.spec import SubmodelSpec, build_on_meta
from nefl.references import is_reference

WORST = 1e30
"""A score that stands for what is no number."""


@dataclass(frozen=True)
class Scored:
    """A member that was scored.

    Attributes:
        spec: which it is.
        member: the same as `nefl export --member` takes it.
        cost: what it costs.
        score: the run's most important metric, on the examples that choose.
        trained: the number of the trained submodel that it is; 0 if it was not trained.
    """

    spec: SubmodelSpec
    member: str
    cost: Cost
    score: float
    trained: int = 0


class Laboratory:
    """Cuts, measures and scores members of one run; what was scored is noted in its folder.

    Args:
        source: the run, opened.
        run: its folder.
        budget: what members may cost.
        examples: test examples that are used, half of them to choose.

    Attributes:
        space: the members that there are.
        family: the trained family.
        budget: what members may cost.
        metric: what is measured.
        examples: how many examples choose; as many others check.

    Raises:
        ConfigError: if its members cannot be cut.
    """

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
        self._source, self.budget, self.family = source, budget, family
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

    def ranked(self, tried: Iterable[Scored]) -> list[Scored]:
        """Return members, best first; of equal ones the one with fewer MACs."""
        sign = -1 if self.metric.better == "up" else 1
        return sorted(tried, key=lambda s: (sign * s.score, s.cost.macs))

    def costed(self, spec: SubmodelSpec) -> Cost | None:
        """Return what a member costs but for its latency; None if that is above the budget."""
        known = self._journal.known.get(self.space.text(spec))
        untimed = replace(self.budget, latency=None)
        if known is not None:
            cost = Cost(known["params"], known["macs"], known["memory"])
            return cost if cost.fits(untimed) else None
        module = build_on_meta(self.family.build, spec)
        params = float(count_params(module) + count_frozen(module))
        # The cheapest to count first: most members that do not fit show it there.
        if self.budget.params is not None and params > self.budget.params:
            return None
        signature = self._source.setting.task.signature
        macs = float(count_macs(module, signature)[1])
        if self.budget.macs is not None and macs > self.budget.macs:
            return None
        cost = Cost(params, macs, float(inference_memory(module, signature)))
        return cost if cost.fits(untimed) else None

    def score(self, spec: SubmodelSpec, cost: Cost) -> Scored:
        """Score a member, unless that is noted already."""
        text = self.space.text(spec)
        specs = self.family.specs
        trained = specs.index(spec) + 1 if spec in specs else 0
        line = self._journal.known.get(text)
        timed = self.budget.latency is not None
        if line is None or (timed and line.get("latency") is None):
            module = cut(self._trained, spec, self._batches)
            score = line["score"] if line else self._measure(module, *self._choosing)
            latency = self._latency(module) if timed else None
            line = {"member": text, "trained": trained, "score": score, "latency": latency,
                    "params": cost.params, "macs": cost.macs, "memory": cost.memory}  # fmt: skip
            self._journal.add(line)
        seconds: Any = line.get("latency") if timed else None
        return Scored(spec, text, replace(cost, latency=seconds), float(line["score"]), trained)

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
        module = cut(self._trained, scored.spec, self._batches)
        return self._measure(module, *self._checking)

    def nothing_fits(self, latency: float | None = None) -> ConfigError:
        """Return the error for a budget that not even the smallest member keeps to.

        Args:
            latency: seconds that the smallest member takes, where that was measured.
        """
        spec = self.space.spec(self.space.least)
        module = build_on_meta(self.family.build, spec)
        signature = self._source.setting.task.signature
        least = {
            "params": count_params(module),
            "macs": count_macs(module, signature)[1],
            "memory": inference_memory(module, signature),
        }
        shown = ", ".join(f"{name} {value}" for name, value in least.items())
        shown += "" if latency is None else f", latency {latency * 1e3:.3g} ms"
        return ConfigError(
            f"no member fits: the smallest ({self.space.text(spec)}) has {shown}; allow more"
        )
