"""Runs side by side: seeds gathered into rows, rows into sections, and a word on what differs."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nefl.errors import ConfigError
from nefl.report.costs import bytes_spent, costs_of, macs_spent
from nefl.report.gathering import (
    SECTIONS,
    WITHOUT_EFFECT,
    Gathered,
    gather,
    say_setting,
    varied_keys,
)
from nefl.report.published import ALIKE, PUBLISHED, Published, published_for
from nefl.report.runs import Run, mean
from nefl.report.scores import best_first, with_arrow
from nefl.state import MeasuredBy
from nefl.wording import counted

MEASURES = ("worst", "average", "best")


@dataclass(frozen=True)
class Spread:
    """A measure over seeds.

    Attributes:
        values: one for each run, in the order of the seeds.
        mean: their mean.
        spread: their standard deviation with n - 1, not-a-number for a single one.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over runs."""
        return mean(self.values)

    @property
    def spread(self) -> float:
        """The standard deviation over runs, with n - 1."""
        known = len(self.values) > 1 and all(map(math.isfinite, self.values))
        return statistics.stdev(self.values) if known else math.nan


@dataclass(frozen=True)
class Row:
    """One way of training, over its seeds.

    Attributes:
        name: the method, and what else tells it from other rows.
        runs: the runs that count, by seed.
        finished: whether they all are.
        measures: `worst`, `average`, `best` (of the primary metric), `bytes` and `macs`.
        to_target: for each target, the rounds until the average reached it, of those runs that
            did.
        published: what others reported for it.
    """

    name: str
    runs: tuple[Run, ...]
    finished: bool
    measures: Mapping[str, Spread]
    to_target: Mapping[float, Spread]
    published: Published | None = None

    @property
    def submodels(self) -> int:
        """How many submodels were measured."""
        return len(self.runs[0].scores)

    @property
    def metric(self) -> MeasuredBy:
        """What its runs are measured by."""
        return self.runs[0].metric


@dataclass(frozen=True)
class Section:
    """Rows that may be set against each other: the same metric, data, partition and model."""

    title: str
    rows: tuple[Row, ...]

    @property
    def metric(self) -> MeasuredBy:
        """What its rows are measured by."""
        return self.rows[0].metric

    def competes(self, row: Row) -> bool:
        """Whether a row may be the best: finished, and with as many submodels as any other.

        The only model of FedAvg is its worst, average and best; nested families do more than that.
        """
        return row.finished and row.submodels == max(other.submodels for other in self.rows)

    def best(self, measure: str) -> float:
        """Return the best mean of a measure among rows that compete, not-a-number if none does."""
        found = [row.measures[measure].mean for row in self.rows if self.competes(row)]
        known = [value for value in found if math.isfinite(value)]
        return self.metric.best(known) if known else math.nan

    def fastest(self, target: float) -> float:
        """Return the fewest rounds to a target among rows whose runs all reached it."""
        found = [
            row.to_target[target].mean
            for row in self.rows
            if self.competes(row) and len(row.to_target[target].values) == len(row.runs)
        ]
        return min((value for value in found if math.isfinite(value)), default=math.nan)


@dataclass(frozen=True)
class Comparison:
    """Tables of runs.

    Attributes:
        sections: the tables.
        targets: averages whose rounds were counted.
        shared: what all runs have in common, in a line.
        notes: what a reader must know to read the tables rightly.
        paper: whether published figures were asked for.
    """

    sections: tuple[Section, ...]
    targets: tuple[float, ...] = ()
    shared: str = ""
    notes: tuple[str, ...] = ()
    paper: bool = False


def compare(
    runs: Sequence[Run],
    *,
    targets: Sequence[float] = (),
    paper: bool = False,
    sort: str = "",
) -> Comparison:
    """Gather runs that differ only by seed into rows, and rows into sections.

    Args:
        runs: the runs, in the order in which their rows shall stand.
        targets: averages of the primary metric whose rounds are counted.
        paper: whether to look for published figures.
        sort: a measure to order the rows by, best first; or as given.

    Raises:
        ConfigError: if a target cannot be one of what the runs are measured by.
    """
    check_targets(runs, targets)
    gathered = gather(runs)
    settings = [each.settings for each in gathered]
    varied = varied_keys(settings)
    names = [each.name for each in gathered]
    notes = [note for each in gathered for note in _left_out(each)]
    places: dict[str, list[Row]] = {}
    for each in gathered:
        published = published_for(each.runs[0]) if paper else None
        notes += _departures(each.name, each.runs[0], published)
        row = _row(each.name, each.runs, targets, published)
        places.setdefault(each.title, []).append(row)
    if sort:
        places = {
            title: best_first(rows[0].metric, [(row.measures[sort].mean, row) for row in rows])
            for title, rows in places.items()
        }
    notes += _metrics(gathered)
    notes += _differences(settings, varied, names)
    notes += _families(gathered)
    if targets:
        notes += _grids(gathered)
    if paper and not any(row.published for rows in places.values() for row in rows):
        notes.append("no published figures are known for these settings")
    if paper:
        notes += _not_published(gathered)
    sections = tuple(Section(title, tuple(rows)) for title, rows in places.items())
    return Comparison(
        sections, tuple(targets), _in_common(settings, varied), tuple(dict.fromkeys(notes)), paper
    )


def check_targets(runs: Sequence[Run], targets: Sequence[float]) -> None:
    """Refuse targets that say nothing of what runs are measured by.

    Raises:
        ConfigError: if runs are measured by several metrics, or a share is not between 0 and 1.
    """
    metrics = list(dict.fromkeys(run.metric for run in runs))
    if targets and len(metrics) > 1:
        names = ", ".join(with_arrow(metric) for metric in metrics)
        raise ConfigError(
            f"target {targets[0]:g}: the runs are measured by {names}; compare them apart"
        )
    for target in targets:
        if not math.isfinite(target):
            raise ConfigError(f"target {target}: give a number")
        if metrics[0].percent and not 0 < target < 1:
            name = metrics[0].name
            raise ConfigError(f"target {target:g}: give {name} between 0 and 1, as in 0.8")


def _left_out(each: Gathered) -> list[str]:
    """Say which runs do not count, and which count although they are not finished."""
    marked = [run for run in each.runs if run.status != "finished" or not run.scores]
    notes = [f"{run.name}: {why}" for run, why in each.others]
    return notes + [f"{run.name}: its row is marked *, {run.progress}" for run in marked]


def _row(
    name: str, runs: Sequence[Run], targets: Sequence[float], published: Published | None
) -> Row:
    measured = [run for run in runs if run.scores]
    return Row(
        name=name,
        runs=tuple(runs),
        finished=all(run.status == "finished" and bool(run.scores) for run in runs),
        measures={
            "worst": Spread(tuple(run.scores[0] for run in measured)),
            "average": Spread(tuple(mean(run.scores) for run in measured)),
            "best": Spread(tuple(run.metric.best(run.scores) for run in measured)),
            "bytes": Spread(tuple(float(bytes_spent(run)) for run in runs)),
            "macs": Spread(tuple(macs_spent(run, costs_of(run)) for run in runs)),
        },
        to_target={target: Spread(_rounds_to(runs, target)) for target in targets},
        published=published,
    )


def _rounds_to(runs: Sequence[Run], target: float) -> tuple[float, ...]:
    first = (
        next((e.number for e in run.evaluated if run.metric.reached(mean(e.scores), target)), None)
        for run in runs
    )
    return tuple(float(number) for number in first if number is not None)


def _metrics(gathered: Sequence[Gathered]) -> list[str]:
    """Say that rows are measured by several metrics, so that nobody compares across them."""
    holders: dict[str, list[str]] = {}
    for each in gathered:
        held = holders.setdefault(with_arrow(each.runs[0].metric), [])
        if each.name not in held:
            held.append(each.name)
    if len(holders) < 2:
        return []
    told = "; ".join(f"{metric}: {', '.join(names)}" for metric, names in holders.items())
    return [f"not measured by the same, so in tables of their own ({told})"]


def _differences(
    settings: Sequence[Mapping[str, Any]], varied: Sequence[str], names: Sequence[str]
) -> list[str]:
    """Say in which further settings the rows differ, so that nobody takes them for equal."""
    notes = []
    for key in varied:
        if key in (*SECTIONS, "model.method"):
            continue
        holders: dict[str, list[str]] = {}
        for own, name in zip(settings, names, strict=True):
            value = "none" if own.get(key) is None else str(own.get(key))
            if name not in holders.setdefault(value, []):
                holders[value].append(name)
        most = max(holders, key=lambda value: len(holders[value]))
        told = [f"{v} ({', '.join(who)})" for v, who in holders.items() if v != most]
        notes.append(f"{key} is not the same for all: {'; '.join(told)}; {most} for the others")
    return notes


def _families(gathered: Sequence[Gathered]) -> list[str]:
    sizes: dict[int, list[str]] = {}
    for each in gathered:
        count = len(each.runs[0].scores)
        if count and each.name not in sizes.setdefault(count, []):
            sizes[count].append(each.name)
    if len(sizes) < 2:
        return []
    told = "; ".join(f"{count}: {', '.join(who)}" for count, who in sorted(sizes.items()))
    note = f"numbers of submodels differ, so worst and average are not over the same ({told})"
    return [f"{note}; the best is marked among the largest families"]


def _grids(gathered: Sequence[Gathered]) -> list[str]:
    found = {str(run.settings["server.evaluate_every"]) for each in gathered for run in each.runs}
    if len(found) < 2:
        return []
    told = ", ".join(sorted(found, key=int))
    return [f"runs were evaluated every {told} rounds: what was measured less often looks slower"]


def _departures(name: str, run: Run, published: Published | None) -> list[str]:
    """Say in what a run is not what its published figures are for."""
    if published is None:
        return []
    told = [
        f"{key}={run.settings.get(key)} instead of {value}"
        for key, value in published.settings.items()
        if not key.startswith((*WITHOUT_EFFECT, *ALIKE)) and value != run.settings.get(key)
    ]
    return [f"{name} is not as published: {', '.join(told)}"] if told else []


def _not_published(gathered: Sequence[Gathered]) -> list[str]:
    others = [each.name for each in gathered if each.runs[0].metric.name != PUBLISHED]
    if not others:
        return []
    told = ", ".join(dict.fromkeys(others))
    return [f"published figures are of {PUBLISHED}; none stand beside {told}"]


def _in_common(settings: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> str:
    first = settings[0]
    told = [
        say_setting(k, first.get(k))
        for k in ("model.name", "data.name", "partition")
        if k not in varied
    ]
    if not {"clients.count", "clients.per_round"} & set(varied):
        told.append(
            f"{first['clients.per_round']} of {counted(first['clients.count'], 'client')} a round"
        )
    if "rounds" not in varied:
        told.append(counted(first["rounds"], "round"))
    return ", ".join(told)
