"""A comparison as tables that are ready to be written: cells, headings, what stands below."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nefl.report.reading.scores import (
    ARROWS,
    describe_metrics,
    show_score,
    show_spread,
    show_target,
)
from nefl.report.tables.comparison import MEASURES, Comparison, Row, Section
from nefl.wording import show_bytes, show_count, show_duration

WIDE = MEASURES[:2]
"""What a wide table has of each section."""
PAPER = ("paper worst", "paper average")


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, and whether it is the best of its column."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Grid:
    """A table ready to be written.

    Attributes:
        title: what stands above it.
        headings: one for each column.
        rows: the cells.
        groups: headings over several columns: text, and how many columns it spans.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    groups: tuple[tuple[str, int], ...] = ()


def grids(comparison: Comparison) -> list[Grid]:
    """Return one table for each section, with all that was measured."""
    return [
        Grid(
            section.title,
            _headings(section, comparison),
            tuple(_cells(row, section, comparison) for row in section.rows),
        )
        for section in comparison.sections
    ]


def _headings(section: Section, comparison: Comparison) -> tuple[str, ...]:
    targets = (show_target(section.metric, target) for target in comparison.targets)
    return (
        "method",
        "seeds",
        *_measures(section, MEASURES),
        *(f"{what} to {target}" for target in targets for what in _ways(section)),
        "sent",
        "MACs",
        *(PAPER if comparison.paper else ()),
    )


def _measures(section: Section, measures: Sequence[str]) -> tuple[str, ...]:
    arrow = ARROWS[section.metric.better]
    return tuple(f"{measure} {arrow}" for measure in measures)


def _cells(row: Row, section: Section, comparison: Comparison) -> tuple[Cell, ...]:
    cells = [Cell(_marked(row.name, finished=row.finished)), Cell(show_seeds(row))]
    cells += [_score(row, section, measure) for measure in MEASURES]
    for target in comparison.targets:
        found = row.to_target[target]
        fastest = len(section.rows) > 1 and found.mean == section.fastest(target)
        may_win = len(found.values) == len(row.runs) and section.competes(row)
        cells.append(Cell(_rounds(row, target), fastest and may_win))
        if len(_ways(section)) > 1:
            cells.append(Cell(_time(row, target)))
    cells.append(Cell(show_bytes(row.measures["bytes"].mean)))
    macs = row.measures["macs"].mean
    cells.append(Cell(show_count(macs) if math.isfinite(macs) else "–"))
    return (*cells, *_published(row, comparison))


def show_seeds(row: Row) -> str:
    """Write how many runs stand behind each figure of a row, a range where that differs."""
    return "–".join(map(str, row.seeds))


def _published(row: Row | None, comparison: Comparison) -> list[Cell]:
    if not comparison.paper:
        return []
    known = row.published if row else None
    figures = (known.worst, known.average) if row and known else (None, None)
    return [Cell(show_score(row.metric, figure) if row else "–") for figure in figures]


def _marked(name: str, *, finished: bool) -> str:
    return name if finished else f"{name} *"


def _score(row: Row, section: Section, measure: str) -> Cell:
    found, metric = row.measures[measure], section.metric
    several, may_win = len(section.rows) > 1, section.competes(row)
    # As printed: equal figures are equally bold.
    told, best = (show_score(metric, value) for value in (found.mean, section.best(measure)))
    bold = several and may_win and math.isfinite(found.mean) and told == best
    return Cell(show_spread(metric, found.mean, found.spread), bold)


def _rounds(row: Row, target: float) -> str:
    found = row.to_target[target]
    if not found.values:
        return "never"
    told = f"{found.mean:.0f}"
    if math.isfinite(found.spread):
        told = f"{told} ± {found.spread:.0f}"
    reached, of = len(found.values), len(row.runs)
    return told if reached == of else f"{told} ({reached} of {of})"


def _ways(section: Section) -> tuple[str, ...]:
    """Return by what the way to a target is told: simulated time too, where there is any."""
    timed = any(found.values for row in section.rows for found in row.time_to_target.values())
    return ("rounds", "simulated time") if timed else ("rounds",)


def _time(row: Row, target: float) -> str:
    found = row.time_to_target[target]
    if not found.values:
        return "–"
    told = show_duration(found.mean)
    return f"{told} ± {show_duration(found.spread)}" if math.isfinite(found.spread) else told


def wide_grid(comparison: Comparison) -> Grid:
    """Return one table with a row for each method and the sections side by side, as papers do."""
    names = dict.fromkeys(row.name for section in comparison.sections for row in section.rows)
    rows = []
    for name in names:
        held = [
            next((row for row in section.rows if row.name == name), None)
            for section in comparison.sections
        ]
        finished = all(row.finished for row in held if row is not None)
        cells = [Cell(_marked(name, finished=finished))]
        for section, row in zip(comparison.sections, held, strict=True):
            cells += [_score(row, section, m) if row else Cell("") for m in WIDE]
            cells += _published(row, comparison)
        rows.append(tuple(cells))
    each = [
        (*_measures(section, WIDE), *(PAPER if comparison.paper else ()))
        for section in comparison.sections
    ]
    groups = zip(comparison.sections, each, strict=True)
    return Grid(
        comparison.shared,
        ("method", *(heading for own in each for heading in own)),
        tuple(rows),
        (("", 1), *((section.title, len(own)) for section, own in groups)),
    )


def footnotes(comparison: Comparison) -> list[str]:
    """Return what stands under the tables."""
    rows = [row for section in comparison.sections for row in section.rows]
    said = describe_metrics(section.metric for section in comparison.sections)
    several = any(max(row.seeds) > 1 for row in rows)
    told = [f"mean ± standard deviation over seeds; {said}" if several else said]
    if any(not row.finished for row in rows):
        told.append("* not finished")
    sources = dict.fromkeys(row.published.source for row in rows if row.published)
    if comparison.paper and any(sources):
        told.append(f"published: {', '.join(filter(None, sources))}")
    return [*told, *comparison.notes]
