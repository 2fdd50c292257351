"""The rows that figures are drawn from: plain records, told from runs alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from nefl.nesting.coverage import shared_cells
from nefl.report.costs import (
    Assignment,
    Costs,
    assignments,
    client_sizes,
    costs_of,
    trained_totals,
)
from nefl.report.entries import RoundEntry
from nefl.report.gathering import leading_metric, line_names
from nefl.report.runs import Run, mean
from nefl.report.scores import drawn_score, with_arrow
from nefl.report.weights import OfSubmodel, l1_norms, newest_state, step_sizes
from nefl.state import MeasuredBy

Record = dict[str, Any]
EVALUATIONS = "evaluations"
"""What a run lacks that was not measured, or not by what others are."""
MAX_POINTS = 4000
"""Points of the lines of one figure; more would be slow to draw and no better to see."""


@dataclass(frozen=True, eq=False)
class Told:
    """A run and what follows from its folder, each worked out when it is first asked for.

    Attributes:
        run: the run.
        gathered_as: the line of figures in which it counts, if not one of its own.
        missing: what could not be told, and why; filled as it is found out.
    """

    run: Run
    gathered_as: str = ""
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The line of figures in which it counts."""
        return self.gathered_as or self.run.name

    @property
    def names(self) -> Record:
        """What every record of it begins with: the run, and the line it counts in."""
        return {"run": self.run.name, "line": self.line}

    @cached_property
    def costs(self) -> Costs:
        """What its submodels cost."""
        found = costs_of(self.run)
        if not found.profiles:
            self.missing["costs"] = found.unknown
        return found

    @cached_property
    def assignments(self) -> list[Assignment] | None:
        """Who trained what in each round."""
        return assignments(self.run, self.costs, client_sizes(self.run))

    @cached_property
    def weights(self) -> tuple[list[OfSubmodel], list[OfSubmodel]]:
        """Step sizes by block, and L1 norms by layer."""
        family = self.costs.family
        if family is None:
            self.missing["weights"] = self.costs.unknown
            return [], []
        state, problem = newest_state(self.run, family)
        if state is None:
            self.missing["weights"] = problem
            return [], []
        return step_sizes(state, family), l1_norms(state, family)


def tell(runs: Sequence[Run], *, every_run: bool = False) -> list[Told]:
    """Return what runs' folders tell; runs that differ by the seed alone share a line.

    Args:
        runs: the runs.
        every_run: whether each has a line of its own instead.
    """
    lines = {} if every_run else line_names(runs)
    return [Told(run, lines.get(run.name, "")) for run in runs]


def left_out(told: Sequence[Told], *gaps: str) -> list[str]:
    """Say which runs are not in a figure and why, those with one reason together.

    Args:
        told: the runs, after the figure was made.
        gaps: what to look for in `missing`; everything, if nothing is named.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for each in told:
        for gap, why in each.missing.items():
            if not gaps or gap in gaps:
                found.setdefault((gap, why), []).append(each.run.name)
    return [f"{', '.join(names)}: not in {gap}: {why}" for (gap, why), names in found.items()]


SCORE = "score"
"""The field of the primary metric, whatever that is called."""


def metric_of(told: Sequence[Told]) -> MeasuredBy:
    """Return what a figure of some runs is drawn by."""
    return leading_metric([each.run for each in told])


def measured_alike(told: Sequence[Told]) -> list[Told]:
    """Return the runs that a figure of the primary metric has."""
    metric = metric_of(told)
    return [each for each in told if each.run.evaluated and each.run.metric == metric]


def evaluation_records(told: Sequence[Told]) -> list[Record]:
    """Return a record for each evaluation: worst, average, best and each submodel."""
    metric = metric_of(told)
    return [
        {
            **each.names,
            "method": each.run.method,
            "round": entry.number,
            "worst": drawn_score(metric, entry.scores[0]),
            "average": drawn_score(metric, mean(entry.scores)),
            "best": drawn_score(metric, metric.best(entry.scores)),
            **{
                f"submodel {k}": drawn_score(metric, score)
                for k, score in enumerate(entry.scores, start=1)
            },
        }
        for each, entries in zip(told, thinned(told, _measured(told)), strict=True)
        for entry in entries
    ]


def _measured(told: Sequence[Told]) -> list[list[RoundEntry]]:
    """Return the evaluations of each run that is measured as the figure is."""
    metric = metric_of(told)
    for each in told:
        run = each.run
        if not run.evaluated:
            each.missing[EVALUATIONS] = f"nothing was measured yet ({run.progress})"
        elif run.metric != metric:
            own, drawn = with_arrow(run.metric), with_arrow(metric)
            each.missing[EVALUATIONS] = f"it is measured by {own}, the figures are of {drawn}"
    return [list(each.run.evaluated) if each.run.metric == metric else [] for each in told]


def thinned(
    told: Sequence[Told], entries: Sequence[Sequence[RoundEntry]], lines: int = 1
) -> list[list[RoundEntry]]:
    """Leave out rounds evenly where a figure has more points than can be seen.

    Runs of one line keep the same rounds, so that they can be averaged; the last of each stays.

    Args:
        told: the runs.
        entries: the entries of each.
        lines: how many points a figure makes of an entry.
    """
    step = max(1, math.ceil(sum(map(len, entries)) * lines / MAX_POINTS))
    kept: dict[str, set[int]] = {}
    for line in {each.line for each in told}:
        own = [found for each, found in zip(told, entries, strict=True) if each.line == line]
        numbers = sorted({entry.number for found in own for entry in found})
        kept[line] = set(numbers[step - 1 :: step])
        kept[line] |= {found[-1].number for found in own if found}
    return [
        [entry for entry in found if entry.number in kept[each.line]]
        for each, found in zip(told, entries, strict=True)
    ]


def submodel_records(told: Sequence[Told]) -> list[Record]:
    """Return a record for each submodel at each evaluation."""
    metric = metric_of(told)
    most = max((len(each.run.scores) for each in told), default=0)
    return [
        {
            **each.names,
            "method": each.run.method,
            "round": entry.number,
            "submodel": k,
            SCORE: drawn_score(metric, score),
        }
        for each, entries in zip(told, thinned(told, _measured(told), most), strict=True)
        for entry in entries
        for k, score in enumerate(entry.scores, start=1)
    ]


def round_records(told: Sequence[Told]) -> list[Record]:
    """Return a record for each round: loss, seconds, MiB, failures."""
    for each in told:
        if not each.run.rounds:
            each.missing["rounds"] = "no round has been finished"
    return [
        {
            **each.names,
            "round": entry.number,
            "loss": round(entry.loss, 4) if math.isfinite(entry.loss) else None,
            "seconds": round(entry.seconds, 3),
            "MiB": round((entry.bytes_down + entry.bytes_up) / 2**20, 3),
            "failures": len(entry.failures),
        }
        for each, entries in zip(
            told, thinned(told, [each.run.rounds for each in told]), strict=True
        )
        for entry in entries
    ]


def cost_records(told: Sequence[Told]) -> list[Record]:
    """Return how each submodel did at the last evaluation, and its cost."""
    metric = metric_of(told)
    return [
        {
            **each.names,
            "submodel": profile.index,
            SCORE: drawn_score(metric, entries[-1].scores[profile.index - 1]),
            "MACs": profile.macs_total,
            "parameters": profile.params,
            "bytes": profile.payload_bytes,
            "memory": profile.train_memory_bytes,
        }
        for each, entries in zip(told, _measured(told), strict=True)
        if entries
        for profile in each.costs.profiles
        if profile.index <= len(entries[-1].scores)
    ]


def step_records(told: Sequence[Told]) -> list[Record]:
    """Return the step size of each block of each submodel.

    Runs whose steps are all 1 would be empty panels beside others, so they are left out there.
    """
    plain = [each for each in told if all(found.value == 1 for found in each.weights[0])]
    if len(plain) == len(told):
        return _of_submodels(told, 0, "block", "step size")
    for each in plain:
        if each.weights[0]:
            each.missing["step sizes"] = "all are 1, its method does not learn them"
    return _of_submodels([t for t in told if t not in plain], 0, "block", "step size")


def norm_records(told: Sequence[Told]) -> list[Record]:
    """Return the mean absolute weight of each layer of each submodel."""
    return _of_submodels(told, 1, "layer", "L1 norm")


def _of_submodels(told: Sequence[Told], which: int, place: str, value: str) -> list[Record]:
    return [
        {
            **each.names,
            "submodel": found.submodel,
            place: found.place,
            value: round(found.value, 6) if math.isfinite(found.value) else None,
        }
        for each in told
        for found in each.weights[which]
    ]


def coverage_records(told: Sequence[Told]) -> list[Record]:
    """Return how often the elements of each shared tensor were trained: mean and least."""
    records = []
    for each in told:
        if each.costs.family is None:
            each.missing["coverage"] = each.costs.unknown
            continue
        totals = trained_totals(each.run)
        updates: dict[str, list[tuple[int, int]]] = {}
        for name, cell in shared_cells(each.costs.family):
            updates.setdefault(name, []).append((cell.numel, sum(totals[k] for k in cell.holders)))
        records += [
            {
                **each.names,
                "tensor": name,
                "mean": round(sum(n * u for n, u in found) / sum(n for n, _ in found), 1),
                "least": min(u for _, u in found),
            }
            for name, found in updates.items()
        ]
    return records
