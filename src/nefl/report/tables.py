"""A comparison as tables: for the terminal, as Markdown, LaTeX, CSV and JSON."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nefl.artifacts.runfolder import to_json
from nefl.report.comparison import MEASURES, Comparison, Row, Section
from nefl.report.numbers import show_bytes, show_count
from nefl.report.published import Published
from nefl.report.scores import ARROWS, describe_metrics, show_score, show_spread, show_target

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
        *(f"rounds to {target}" for target in targets),
        "sent",
        "MACs",
        *(PAPER if comparison.paper else ()),
    )


def _measures(section: Section, measures: Sequence[str]) -> tuple[str, ...]:
    arrow = ARROWS[section.metric.better]
    return tuple(f"{measure} {arrow}" for measure in measures)


def _cells(row: Row, section: Section, comparison: Comparison) -> tuple[Cell, ...]:
    cells = [Cell(_marked(row.name, finished=row.finished)), Cell(str(len(row.runs)))]
    cells += [_score(row, section, measure) for measure in MEASURES]
    for target in comparison.targets:
        found = row.to_target[target]
        fastest = len(section.rows) > 1 and found.mean == section.fastest(target)
        may_win = len(found.values) == len(row.runs) and section.competes(row)
        cells.append(Cell(_rounds(row, target), fastest and may_win))
    cells.append(Cell(show_bytes(row.measures["bytes"].mean)))
    macs = row.measures["macs"].mean
    cells.append(Cell(show_count(macs) if math.isfinite(macs) else "–"))
    return (*cells, *_published(row, comparison))


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
    several = any(len(row.runs) > 1 for row in rows)
    told = [f"mean ± standard deviation over seeds; {said}" if several else said]
    if any(not row.finished for row in rows):
        told.append("* not finished")
    sources = dict.fromkeys(row.published.source for row in rows if row.published)
    if comparison.paper and any(sources):
        told.append(f"published: {', '.join(filter(None, sources))}")
    return [*told, *comparison.notes]


def to_markdown(comparison: Comparison, tables: Sequence[Grid]) -> str:
    """Write Markdown."""
    parts = [_markdown_text(comparison.shared)] if comparison.shared else []
    for grid in tables:
        if grid.title and grid.title != comparison.shared:
            parts.append(f"**{_markdown_text(grid.title)}**")
        lines = []
        headings = [_markdown_text(heading) for heading in _plain_headings(grid)]
        lines.append("| " + " | ".join(headings) + " |")
        lines.append("|---" + "|---:" * (len(headings) - 1) + "|")
        for row in grid.rows:
            texts = (_markdown_text(cell.text) for cell in row)
            bolds = (cell.bold for cell in row)
            shown_cells = (f"**{t}**" if b else t for t, b in zip(texts, bolds, strict=True))
            lines.append("| " + " | ".join(shown_cells) + " |")
        parts.append("\n".join(lines))
    parts.append("\n".join(f"- {_markdown_text(note)}" for note in footnotes(comparison)))
    return "\n\n".join(parts) + "\n"


def _plain_headings(grid: Grid) -> list[str]:
    """Return headings with their groups' before them, where a format has no second line."""
    groups = [text for text, span in grid.groups for _ in range(span)] or [""] * len(grid.headings)
    return [
        f"{group}: {heading}" if group else heading
        for group, heading in zip(groups, grid.headings, strict=True)
    ]


def _markdown_text(text: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text)


_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "–": "--",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
}


def to_latex(comparison: Comparison, tables: Sequence[Grid]) -> str:
    """Write LaTeX tables, for the package booktabs."""
    parts = []
    for grid in tables:
        lines = [r"\begin{table}[t]", r"\centering"]
        lines.append(rf"\begin{{tabular}}{{l{'r' * (len(grid.headings) - 1)}}}")
        lines.append(r"\toprule")
        if grid.groups:
            spans = (rf"\multicolumn{{{n}}}{{c}}{{{_latex_text(t)}}}" for t, n in grid.groups)
            lines.append(" & ".join(spans) + r" \\")
        lines.append(" & ".join(map(_latex_text, grid.headings)) + r" \\")
        lines.append(r"\midrule")
        for row in grid.rows:
            texts = (
                rf"\textbf{{{_latex_text(cell.text)}}}" if cell.bold else _latex_text(cell.text)
                for cell in row
            )
            lines.append(" & ".join(texts) + r" \\")
        caption = "; ".join(dict.fromkeys(filter(None, (comparison.shared, grid.title))))
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines.append(rf"\caption{{{_latex_text(caption)}}}")
        lines.append(r"\end{table}")
        parts.append("\n".join(lines))
    notes = (f"% {note}" for note in footnotes(comparison))
    return "\n\n".join(parts) + "\n\n" + "\n".join(notes).replace("\r", " ") + "\n"


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _figures(published: Published | None) -> dict[str, Any] | None:
    if published is None:
        return None
    return {key: getattr(published, key) for key in ("worst", "average", "source")}


def records(comparison: Comparison) -> list[dict[str, Any]]:
    """Return each row as plain values: what it is measured by as it is (shares 0 to 1), costs."""
    return [
        {
            "section": section.title,
            "method": row.name,
            "metric": asdict(row.metric),
            "finished": row.finished,
            "seeds": [run.seed for run in row.runs],
            "runs": [str(run.path) for run in row.runs],
            **{
                name: {"mean": found.mean, "spread": found.spread, "values": list(found.values)}
                for name, found in row.measures.items()
            },
            "rounds_to": {
                f"{target:g}": {
                    "mean": found.mean,
                    "spread": found.spread,
                    "values": list(found.values),
                }
                for target, found in row.to_target.items()
            },
            "published": _figures(row.published),
        }
        for section in comparison.sections
        for row in section.rows
    ]


def to_json_text(comparison: Comparison) -> str:
    """Write JSON for programs."""
    content = {
        "shared": comparison.shared,
        "rows": records(comparison),
        "notes": list(comparison.notes),
    }
    return to_json(content, indent=2) + "\n"


def to_csv(comparison: Comparison) -> str:
    """Write CSV: a line for each row, numbers in full."""
    file = io.StringIO()
    lines = [_csv_line(record) for record in records(comparison)]
    writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def _csv_line(record: Mapping[str, Any]) -> dict[str, Any]:
    line: dict[str, Any] = {
        key: _inert(str(record[key])) for key in ("section", "method", "finished")
    }
    line["metric"] = _inert(record["metric"]["name"])
    line["seeds"] = len(record["seeds"])
    for name in (*MEASURES, "bytes", "macs"):
        line[name], line[f"{name}_spread"] = record[name]["mean"], record[name]["spread"]
    for target, found in record["rounds_to"].items():
        line[f"rounds_to_{target}"] = found["mean"]
        line[f"rounds_to_{target}_reached"] = len(found["values"])
    for key in ("worst", "average"):
        line[f"published_{key}"] = (record["published"] or {}).get(key)
    return {key: "" if isinstance(v, float) and math.isnan(v) else v for key, v in line.items()}


def _inert(text: str) -> str:
    """Keep a spreadsheet from taking a name for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
