"""Tables as files: Markdown, LaTeX, CSV and JSON."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from nefl.artifacts.notes import to_json
from nefl.report.reading.gathering import WITHOUT_EFFECT, varied_keys
from nefl.report.reading.meant import MEMBER, OPTION, STEP_NAME, as_meant, member_alone
from nefl.report.reading.published import Published
from nefl.report.tables.comparison import MEASURES, Comparison, Row, Spread
from nefl.report.tables.grids import Grid, footnotes, show_seeds
from nefl.report.tables.members import columns_of, member_lines

COSTS = ("bytes", "macs")


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
        begun
        | {
            "seeds": [run.seed for run in row.runs],
            "runs": [str(run.path) for run in row.runs],
            **{name: _plain(found) for name, found in row.measures.items()},
            "submodels": [list(run.scores) for run in row.runs],
            "rounds_to": {f"{t:g}": _plain(found) for t, found in row.to_target.items()},
            "simulated_seconds_to": {
                f"{t:g}": _plain(found) for t, found in row.time_to_target.items()
            },
            "published": _figures(row.published),
        }
        for row, begun in _begun(comparison)
    ]


def member_records(comparison: Comparison) -> list[dict[str, Any]]:
    """Return each row as plain values by the columns of tables of members, and its costs."""
    lines = [line for section in comparison.sections for line in member_lines(section)]
    return [
        begun
        | {
            "seeds": [run.seed for run in row.runs],
            "runs": [str(run.path) for run in row.runs],
            "alone": [member_alone(run.settings) for run in row.runs] if row.alone else [],
            "submodels": {str(number): _plain(found) for number, found in line.scores.items()},
            **{cost: _plain(row.measures[cost]) for cost in COSTS},
        }
        for line, (row, begun) in zip(lines, _begun(comparison), strict=True)
    ]


def _begun(comparison: Comparison) -> list[tuple[Row, dict[str, Any]]]:
    """Return each row with what its record begins with."""
    rows = [(section, row) for section in comparison.sections for row in section.rows]
    settings = _told_apart(comparison)
    return [
        (
            row,
            {
                "section": section.title,
                "method": row.name,
                "settings": own,
                "metric": asdict(row.metric),
                "finished": row.finished,
            },
        )
        for (section, row), own in zip(rows, settings, strict=True)
    ]


def _told_apart(comparison: Comparison) -> list[dict[str, Any]]:
    """Return of each row what tells it from others, by full keys and as `--set` takes it."""
    rows = [row for section in comparison.sections for row in section.rows]
    settings = [row.runs[0].settings for row in rows]
    options = {key for own in settings for key in own if key.startswith(OPTION)}
    varied = [key for key in varied_keys(settings) if not key.startswith(WITHOUT_EFFECT)]
    keys = dict.fromkeys(["model.method", *sorted(options), *varied])
    return [
        {
            key: own[key]
            for key in keys
            if own.get(key) is not None
            # Which member each run trained is told by the number of its submodel.
            and not (comparison.members and key == MEMBER)
            # A step that is the method's own is taken where none is set.
            and not (key == STEP_NAME and as_meant(own)[key] != own[key])
        }
        for own in settings
    ]


def _plain(found: Spread) -> dict[str, Any]:
    return {"mean": found.mean, "spread": found.spread, "values": list(found.values)}


def to_json_text(comparison: Comparison) -> str:
    """Write JSON for programs."""
    content = {
        "shared": comparison.shared,
        "rows": member_records(comparison) if comparison.members else records(comparison),
        "notes": list(comparison.notes),
    }
    return to_json(content, indent=2) + "\n"


def to_csv(comparison: Comparison) -> str:
    """Write CSV: a line for each row, numbers in full."""
    file = io.StringIO()
    lines = _member_csv(comparison) if comparison.members else _csv(comparison)
    writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _csv_value(value) for key, value in line.items()} for line in lines)
    return file.getvalue()


def _csv(comparison: Comparison) -> list[dict[str, Any]]:
    return [_csv_line(record) for record in records(comparison)]


def _member_csv(comparison: Comparison) -> list[dict[str, Any]]:
    """Return a line for each row, with all submodels that any has."""
    sections = [(section, member_lines(section)) for section in comparison.sections]
    columns = columns_of([line for _, lines in sections for line in lines])
    made = []
    for section, lines in sections:
        for own in lines:
            line = _csv_begin(section.title, own.row.name, section.metric.name, own.row.finished)
            line["seeds"] = show_seeds(own.row)
            found = {f"submodel_{column}": own.scores.get(column) for column in columns}
            found |= {cost: own.row.measures[cost] for cost in COSTS}
            for name, spread in found.items():
                line[name] = None if spread is None else spread.mean
                line[f"{name}_spread"] = None if spread is None else spread.spread
            made.append(line)
    return made


def _csv_begin(section: str, method: str, metric: str, finished: bool) -> dict[str, Any]:
    texts = {"section": section, "method": method, "finished": str(finished), "metric": metric}
    return {key: _inert(text) for key, text in texts.items()}


def _csv_value(value: Any) -> Any:
    return "" if isinstance(value, float) and math.isnan(value) else value


def _csv_line(record: Mapping[str, Any]) -> dict[str, Any]:
    begin = (record["section"], record["method"], record["metric"]["name"], record["finished"])
    line = _csv_begin(*begin)
    line["seeds"] = len(record["seeds"])
    for name in (*MEASURES, *COSTS):
        line[name], line[f"{name}_spread"] = record[name]["mean"], record[name]["spread"]
    for target, found in record["rounds_to"].items():
        line[f"rounds_to_{target}"] = found["mean"]
        line[f"rounds_to_{target}_reached"] = len(found["values"])
        line[f"simulated_seconds_to_{target}"] = record["simulated_seconds_to"][target]["mean"]
    for key in ("worst", "average"):
        line[f"published_{key}"] = (record["published"] or {}).get(key)
    return line


def _inert(text: str) -> str:
    """Keep a spreadsheet from taking a name for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
