"""The rows that figures of runs are drawn from: plain records, made from their folders alone."""

import math
from collections.abc import Sequence

from nefl.nesting.coverage import shared_cells
from nefl.report.figures.drawn_run import DrawnRun, Record, metric_of
from nefl.report.reading.costs import trained_totals
from nefl.report.reading.log_lines import RoundEntry
from nefl.report.reading.runs import mean
from nefl.report.reading.scores import drawn_score, with_arrow

SCORE = "score"
"""The field of the primary metric, whatever that is called."""
EVALUATIONS = "evaluations"
"""What a run lacks that was not measured, or not by what others are."""
MAX_POINTS = 4000
"""Points of the lines of one figure; more would be slow to draw and no better to see."""


def evaluation_records(drawn: Sequence[DrawnRun]) -> list[Record]:
    """Return a record for each evaluation: worst, average, best and each submodel."""
    metric = metric_of(drawn)
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
        for each, entries in zip(drawn, thinned(drawn, _measured(drawn)), strict=True)
        for entry in entries
    ]


def _measured(drawn: Sequence[DrawnRun]) -> list[list[RoundEntry]]:
    """Return the evaluations of each run that is measured as the figure is."""
    metric = metric_of(drawn)
    for each in drawn:
        run = each.run
        if not run.evaluated:
            each.missing[EVALUATIONS] = f"nothing was measured yet ({run.progress})"
        elif run.metric != metric:
            own, theirs = with_arrow(run.metric), with_arrow(metric)
            each.missing[EVALUATIONS] = f"it is measured by {own}, the figures are of {theirs}"
    return [list(each.run.evaluated) if each.run.metric == metric else [] for each in drawn]


def thinned(
    drawn: Sequence[DrawnRun], entries: Sequence[Sequence[RoundEntry]], lines: int = 1
) -> list[list[RoundEntry]]:
    """Leave out rounds evenly where a figure has more points than can be seen.

    Runs of one line keep the same rounds, so that they can be averaged; the last of each stays.

    Args:
        drawn: the runs.
        entries: the entries of each.
        lines: how many points a figure makes of an entry.
    """
    step = max(1, math.ceil(sum(map(len, entries)) * lines / MAX_POINTS))
    kept: dict[str, set[int]] = {}
    for line in {each.line for each in drawn}:
        own = [found for each, found in zip(drawn, entries, strict=True) if each.line == line]
        numbers = sorted({entry.number for found in own for entry in found})
        kept[line] = set(numbers[step - 1 :: step])
        kept[line] |= {found[-1].number for found in own if found}
    return [
        [entry for entry in found if entry.number in kept[each.line]]
        for each, found in zip(drawn, entries, strict=True)
    ]


def submodel_records(drawn: Sequence[DrawnRun]) -> list[Record]:
    """Return a record for each submodel at each evaluation."""
    metric = metric_of(drawn)
    most = max((len(each.run.scores) for each in drawn), default=0)
    return [
        {
            **each.names,
            "method": each.run.method,
            "round": entry.number,
            "submodel": k,
            SCORE: drawn_score(metric, score),
        }
        for each, entries in zip(drawn, thinned(drawn, _measured(drawn), most), strict=True)
        for entry in entries
        for k, score in enumerate(entry.scores, start=1)
    ]


def round_records(drawn: Sequence[DrawnRun]) -> list[Record]:
    """Return a record for each round: loss, seconds, MiB, failures."""
    for each in drawn:
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
            drawn, thinned(drawn, [each.run.rounds for each in drawn]), strict=True
        )
        for entry in entries
    ]


def cost_records(drawn: Sequence[DrawnRun]) -> list[Record]:
    """Return how each submodel did at the last evaluation, and its cost."""
    metric = metric_of(drawn)
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
        for each, entries in zip(drawn, _measured(drawn), strict=True)
        if entries
        for profile in each.costs.profiles
        if profile.index <= len(entries[-1].scores)
    ]


def step_records(drawn: Sequence[DrawnRun]) -> list[Record]:
    """Return the step size of each block of each submodel.

    Runs whose steps are all 1 would be empty panels beside others, so they are left out there.
    """
    plain = [each for each in drawn if all(found.value == 1 for found in each.weights[0])]
    if len(plain) == len(drawn):
        return _of_submodels(drawn, 0, "block", "step size")
    for each in plain:
        if each.weights[0]:
            each.missing["step sizes"] = "all are 1, its method does not learn them"
    return _of_submodels([t for t in drawn if t not in plain], 0, "block", "step size")


def norm_records(drawn: Sequence[DrawnRun]) -> list[Record]:
    """Return the mean absolute weight of each layer of each submodel."""
    return _of_submodels(drawn, 1, "layer", "L1 norm")


def _of_submodels(drawn: Sequence[DrawnRun], which: int, place: str, value: str) -> list[Record]:
    return [
        {
            **each.names,
            "submodel": found.submodel,
            place: found.place,
            value: round(found.value, 6) if math.isfinite(found.value) else None,
        }
        for each in drawn
        for found in each.weights[which]
    ]


def coverage_records(drawn: Sequence[DrawnRun]) -> list[Record]:
    """Return how often the elements of each shared tensor were trained: mean and least."""
    records = []
    for each in drawn:
        family = each.family_for("coverage")
        if family is None:
            continue
        totals = trained_totals(each.run)
        updates: dict[str, list[tuple[int, int]]] = {}
        for name, cell in shared_cells(family):
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
