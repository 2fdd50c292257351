"""Members side by side: every submodel of a family, and models that were trained alone beside it.

A run with one model stands in the column of the submodel that is nearest to it in size. What was
trained member by member, each alone, is one row.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nefl.report.reading.gathering import effective
from nefl.report.reading.meant import ALONE, FAMILY, MEMBER
from nefl.report.reading.runs import Run
from nefl.report.reading.scores import ARROWS, show_score, show_spread
from nefl.report.tables.comparison import Comparison, Row, Section, Spread
from nefl.report.tables.grids import Cell, Grid

TOLD = ("member=", "family=")
"""What the name of members alone has in a place of its own."""


@dataclass(frozen=True)
class _Line:
    """A row of the table: scores by column, from 0."""

    name: str
    seeds: int
    scores: Mapping[int, Spread]
    finished: bool


def member_grids(comparison: Comparison) -> list[Grid]:
    """Return a table for each section, with a column for each submodel."""
    return [_grid(section) for section in comparison.sections]


def _grid(section: Section) -> Grid:
    sizes = _column_sizes(section.rows)
    lines = _merged([(row, _line(row, sizes)) for row in section.rows])
    arrow = ARROWS[section.metric.better]
    count = max((max(line.scores, default=0) for line in lines), default=0) + 1
    best = [_best(section, lines, column) for column in range(count)]
    rows = tuple(
        (
            Cell(line.name if line.finished else f"{line.name} *"),
            Cell(str(line.seeds)),
            *(_cell(section, line, column, best[column]) for column in range(count)),
        )
        for line in lines
    )
    headings = ("method", "seeds", *(f"submodel {k + 1} {arrow}" for k in range(count)))
    return Grid(section.title, headings, rows)


def _cell(section: Section, line: _Line, column: int, best: str) -> Cell:
    found = line.scores.get(column)
    if found is None:
        return Cell("")
    shown = show_score(section.metric, found.mean)
    return Cell(show_spread(section.metric, found.mean, found.spread), shown == best != "")


def _best(section: Section, lines: Sequence[_Line], column: int) -> str:
    """Return the best score of a column as it is shown; nothing where one stands alone."""
    found = [line.scores[column].mean for line in lines if line.finished and column in line.scores]
    known = [value for value in found if math.isfinite(value)]
    return show_score(section.metric, section.metric.best(known)) if len(known) > 1 else ""


def _column_sizes(rows: Sequence[Row]) -> tuple[int, ...]:
    """Return the parameters of the submodels of the first row that has most of them."""
    known = [_sizes(row.runs[0]) for row in rows]
    return max(known, key=len, default=())


def _sizes(run: Run) -> tuple[int, ...]:
    return () if run.facts is None else tuple(each.params for each in run.facts.submodels)


def _line(row: Row, sizes: Sequence[int]) -> _Line:
    scores = [run.scores for run in row.runs if run.scores]
    count = min(map(len, scores), default=0)
    columns = {k: k for k in range(count)}
    own, settings = _sizes(row.runs[0]), row.runs[0].settings
    if settings.get("model.method") == ALONE:
        columns = {int(settings.get(MEMBER, 1)) - 1: 0} if count else {}
    elif count == 1 and len(own) == 1 and sizes:
        columns = {min(range(len(sizes)), key=lambda k: abs(sizes[k] - own[0])): 0}
    found = {column: Spread(tuple(s[k] for s in scores)) for column, k in columns.items()}
    return _Line(row.name, len(row.runs), found, row.finished)


def _merged(lines: Sequence[tuple[Row, _Line]]) -> list[_Line]:
    """Return the lines, those of members that were trained alone in one."""
    together: dict[str, list[_Line]] = {}
    for row, line in lines:
        settings = effective(row.runs[0])
        key, name = repr(sorted(settings.items())), line.name
        if settings.get("model.method") == ALONE:
            settings.pop(MEMBER, None)
            key = repr(sorted(settings.items()))
            told = " ".join(w for w in line.name.split(" ") if not w.startswith(TOLD))
            name = f"{told} ({settings.get(FAMILY, 'nefl-d')})"
        together.setdefault(key, []).append(_Line(name, line.seeds, line.scores, line.finished))
    return [
        _Line(
            same[0].name,
            min(line.seeds for line in same),
            {column: found for line in same for column, found in line.scores.items()},
            all(line.finished for line in same),
        )
        for same in together.values()
    ]
