"""Runs side by side: seeds gathered into rows, and rows into sections."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nefl.errors import ConfigError
from nefl.measured import MeasuredBy
from nefl.report.reading.costs import bytes_spent, costs_of, macs_spent
from nefl.report.reading.gathering import Gathered, gather, submodels_of, varied_keys
from nefl.report.reading.meant import member_alone
from nefl.report.reading.published import Published, published_for
from nefl.report.reading.runs import Run, mean
from nefl.report.reading.scores import best_first, with_arrow
from nefl.report.tables.notes import (
    in_common,
    left_out_of_means,
    not_as_published,
    unlike_evaluations,
    unlike_families,
    unlike_metrics,
    unlike_seeds,
    unlike_settings,
    without_family,
    without_published,
)

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
        runs: the runs that count, by seed; where members trained alone are together, by member
            first.
        finished: whether they all are.
        measures: `worst`, `average`, `best` (of the primary metric), `bytes` and `macs`. Members
            alone count as one family, and what they cost is added up.
        to_target: for each target, the rounds until the average reached it, of those runs that
            did.
        time_to_target: the same in seconds of simulated devices, where all of those have them.
        published: what others reported for it.
    """

    name: str
    runs: tuple[Run, ...]
    finished: bool
    measures: Mapping[str, Spread]
    to_target: Mapping[float, Spread]
    time_to_target: Mapping[float, Spread]
    published: Published | None = None

    @property
    def submodels(self) -> int:
        """How many submodels were measured."""
        return submodels_of(self.runs)

    @property
    def alone(self) -> bool:
        """Whether each of its runs trained one member alone."""
        return member_alone(self.runs[0].settings) is not None

    @property
    def seeds(self) -> tuple[int, ...]:
        """The fewest and the most runs that a submodel has; one number where these are equal."""
        counts = Counter(member_alone(run.settings) for run in self.runs).values()
        return tuple(sorted({min(counts), max(counts)}))

    @property
    def scores(self) -> dict[int, Spread]:
        """The primary metric of each submodel over its runs, by the submodel's number."""
        return {number: Spread(found) for number, found in _by_submodel(self.runs).items()}

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
        members: whether members that were trained alone are one row.
    """

    sections: tuple[Section, ...]
    targets: tuple[float, ...] = ()
    shared: str = ""
    notes: tuple[str, ...] = ()
    paper: bool = False
    members: bool = False


def compare(
    runs: Sequence[Run],
    *,
    targets: Sequence[float] = (),
    paper: bool = False,
    sort: str = "",
    members: bool = False,
) -> Comparison:
    """Gather runs that differ only by seed into rows, and rows into sections.

    Args:
        runs: the runs, in the order in which their rows shall stand.
        targets: averages of the primary metric whose rounds are counted.
        paper: whether to look for published figures.
        sort: a measure to order the rows by, best first; or as given.
        members: whether members of a family that were trained alone are one row, for tables and
            figures of every submodel.

    Raises:
        ConfigError: if a target cannot be one of what the runs are measured by.
    """
    check_targets(runs, targets)
    gathered = gather(runs, members=members)
    settings = [each.settings for each in gathered]
    varied = varied_keys(settings)
    notes = [note for each in gathered for note in left_out_of_means(each)]
    places: dict[str, list[Row]] = {}
    for each in gathered:
        published = published_for(each.runs[0]) if paper else None
        who = f"{each.name} on {each.title}" if each.title else each.name
        notes += not_as_published(who, each.runs[0], published)
        row = _row(each, targets, published)
        places.setdefault(each.title, []).append(row)
    if sort:
        places = {
            title: best_first(rows[0].metric, [(row.measures[sort].mean, row) for row in rows])
            for title, rows in places.items()
        }
    notes += unlike_metrics(gathered)
    notes += unlike_settings(gathered, varied)
    if not members:  # every submodel has a column, and every column its best
        marked = "the best is marked among the largest families"
        notes += [f"{note}; {marked}" for note in unlike_families(gathered)]
    else:
        notes += without_family(gathered) + unlike_seeds(gathered)
        notes += unlike_families(gathered) if sort else []
    if targets:
        notes += unlike_evaluations(gathered)
    if paper and not any(row.published for rows in places.values() for row in rows):
        notes.append("no published figures are known for these settings")
    if paper:
        notes += without_published(gathered)
    sections = tuple(Section(title, tuple(rows)) for title, rows in places.items())
    return Comparison(
        sections,
        tuple(targets),
        in_common(settings, varied),
        tuple(dict.fromkeys(notes)),
        paper,
        members,
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


def _row(each: Gathered, targets: Sequence[float], published: Published | None) -> Row:
    runs = each.runs
    families = _families(runs)
    metric = runs[0].metric
    return Row(
        name=each.name,
        runs=runs,
        finished=all(run.status == "finished" and bool(run.scores) for run in runs),
        measures={
            "worst": Spread(tuple(scores[0] for scores in families)),
            "average": Spread(tuple(map(mean, families))),
            "best": Spread(tuple(map(metric.best, families))),
            "bytes": _spent(runs, lambda run: float(bytes_spent(run))),
            "macs": _spent(runs, lambda run: macs_spent(run, costs_of(run))),
        },
        to_target={target: Spread(_rounds_to(runs, target)) for target in targets},
        time_to_target={target: Spread(_seconds_to(runs, target)) for target in targets},
        published=published,
    )


def _by_member(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs of each member that was trained alone; one list where none was."""
    found: dict[int | None, list[Run]] = {}
    for run in runs:
        found.setdefault(member_alone(run.settings), []).append(run)
    return list(found.values())


def _by_submodel(runs: Sequence[Run]) -> dict[int, tuple[float, ...]]:
    """Return what each submodel reached in those runs that were measured, by its number."""
    measured = [run for run in runs if run.scores]
    if runs and member_alone(runs[0].settings) is not None:
        alone = [(member_alone(same[0].settings), same) for same in _by_member(measured)]
        return {number or 0: tuple(run.scores[0] for run in same) for number, same in alone}
    return dict(enumerate(zip(*(run.scores for run in measured), strict=False), start=1))


def _families(runs: Sequence[Run]) -> list[tuple[float, ...]]:
    """Return the scores of all submodels, for each seed; the smallest first.

    Members alone are those of one seed together. Where their seeds are not the same, there is one
    family, of each member's mean.
    """
    if member_alone(runs[0].settings) is None:
        return [run.scores for run in runs if run.scores]
    members = _by_member([run for run in runs if run.scores])
    if len({tuple(run.seed for run in same) for same in members}) > 1:
        return [tuple(mean([run.scores[0] for run in same]) for same in members)]
    return [tuple(run.scores[0] for run in same) for same in zip(*members, strict=True)]


def _spent(runs: Sequence[Run], cost: Callable[[Run], float]) -> Spread:
    """Return what runs cost; of members alone, what all of them cost together."""
    members = _by_member(runs)
    if len({tuple(run.seed for run in same) for same in members}) > 1:
        return Spread((sum(mean([cost(run) for run in same]) for same in members),))
    return Spread(tuple(sum(map(cost, same)) for same in zip(*members, strict=True)))


def _first_at(run: Run, target: float) -> int | None:
    """Return the first round after which the average was as good as a target."""
    reached = (e.number for e in run.evaluated if run.metric.reached(mean(e.scores), target))
    return next(reached, None)


def _rounds_to(runs: Sequence[Run], target: float) -> tuple[float, ...]:
    first = (_first_at(run, target) for run in runs)
    return tuple(float(number) for number in first if number is not None)


def _seconds_to(runs: Sequence[Run], target: float) -> tuple[float, ...]:
    """Return the simulated seconds until runs reached a target; nothing where one has no times."""
    found = []
    for run in runs:
        last = _first_at(run, target)
        if last is not None:
            until = (e.simulated.get("nested", math.nan) for e in run.rounds if e.number <= last)
            found.append(sum(until))
    return tuple(found) if all(map(math.isfinite, found)) else ()
