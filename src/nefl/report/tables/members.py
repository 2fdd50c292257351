"""Members side by side: every submodel of a family, and models that were trained alone beside it.

A run with one model stands in the column of the submodel that is nearest to it in size. What was
trained member by member, each alone, is one row.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nefl.report.reading.meant import member_alone
from nefl.report.reading.runs import Run
from nefl.report.reading.scores import ARROWS, show_score, show_spread
from nefl.report.tables.comparison import Comparison, Row, Section, Spread
from nefl.report.tables.grids import Cell, Grid, show_seeds


@dataclass(frozen=True)
class Line:
    """A row of the table.

    Attributes:
        row: the row of the comparison.
        scores: its scores by the column's submodel, from 1.
    """

    row: Row
    scores: Mapping[int, Spread]


def member_lines(section: Section) -> list[Line]:
    """Return the rows of a section, each with what stands in its columns."""
    sizes = _column_sizes(section.rows)
    return [Line(row, _placed(row, sizes)) for row in section.rows]


def _column_sizes(rows: Sequence[Row]) -> dict[int, int]:
    """Return the parameters of each column's submodel: those of the largest family.

    Without one, those of the members that were trained alone; of single models, by their size.
    """
    family = max((_sizes(row.runs[0]) for row in rows), key=len, default=())
    if len(family) > 1:
        return dict(enumerate(family, start=1))
    runs = [run for row in rows for run in row.runs if _sizes(run)]
    alone = {
        number: _sizes(run)[0] for run in runs if (number := member_alone(run.settings)) is not None
    }
    return alone or dict(enumerate(sorted({_sizes(run)[0] for run in runs}), start=1))


def columns_of(lines: Sequence[Line]) -> list[int]:
    """Return the numbers of the submodels that any row has; the first if none has any."""
    return sorted({number for line in lines for number in line.scores}) or [1]


def member_grids(comparison: Comparison) -> list[Grid]:
    """Return a table for each section, with a column for each submodel."""
    return [_grid(section) for section in comparison.sections]


def _grid(section: Section) -> Grid:
    lines = member_lines(section)
    arrow = ARROWS[section.metric.better]
    columns = columns_of(lines)
    best = {column: _best(section, lines, column) for column in columns}
    rows = tuple(
        (
            Cell(line.row.name if line.row.finished else f"{line.row.name} *"),
            Cell(show_seeds(line.row)),
            *(_cell(section, line, column, best[column]) for column in columns),
        )
        for line in lines
    )
    headings = ("method", "seeds", *(f"submodel {column} {arrow}" for column in columns))
    return Grid(section.title, headings, rows)


def _cell(section: Section, line: Line, column: int, best: str) -> Cell:
    found = line.scores.get(column)
    if found is None:
        return Cell("")
    shown = show_score(section.metric, found.mean)
    return Cell(
        show_spread(section.metric, found.mean, found.spread),
        line.row.finished and shown == best != "",
    )


def _best(section: Section, lines: Sequence[Line], column: int) -> str:
    """Return the best score of a column as it is shown; nothing where one stands alone."""
    of_column = [line for line in lines if line.row.finished and column in line.scores]
    found = [line.scores[column].mean for line in of_column]
    known = [value for value in found if math.isfinite(value)]
    return show_score(section.metric, section.metric.best(known)) if len(known) > 1 else ""


def _sizes(run: Run) -> tuple[int, ...]:
    return () if run.facts is None else tuple(each.params for each in run.facts.submodels)


def _placed(row: Row, sizes: Mapping[int, int]) -> Mapping[int, Spread]:
    """Return a row's scores by column: a single model's in that of the submodel of its size."""
    scores, own = row.scores, _sizes(row.runs[0])
    if row.alone or len(scores) != 1 or len(own) != 1 or not sizes:
        return scores
    return {min(sizes, key=lambda column: abs(sizes[column] - own[0])): scores[1]}
