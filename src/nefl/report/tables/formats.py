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
from nefl.report.reading.meant import OPTION
from nefl.report.reading.published import Published
from nefl.report.tables.comparison import MEASURES, Comparison, Spread
from nefl.report.tables.grids import Grid, footnotes


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
    settings = iter(_told_apart(comparison))
    return [
        {
            "section": section.title,
            "method": row.name,
            "settings": next(settings),
            "metric": asdict(row.metric),
            "finished": row.finished,
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
        for section in comparison.sections
        for row in section.rows
    ]


def _told_apart(comparison: Comparison) -> list[dict[str, Any]]:
    """Return of each row what tells it from others, by full keys and as `--set` takes it."""
    rows = [row for section in comparison.sections for row in section.rows]
    settings = [row.runs[0].settings for row in rows]
    options = {key for own in settings for key in own if key.startswith(OPTION)}
    varied = [key for key in varied_keys(settings) if not key.startswith(WITHOUT_EFFECT)]
    keys = dict.fromkeys(["model.method", *sorted(options), *varied])
    return [{key: own[key] for key in keys if own.get(key) is not None} for own in settings]


def _plain(found: Spread) -> dict[str, Any]:
    return {"mean": found.mean, "spread": found.spread, "values": list(found.values)}


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
        line[f"simulated_seconds_to_{target}"] = record["simulated_seconds_to"][target]["mean"]
    for key in ("worst", "average"):
        line[f"published_{key}"] = (record["published"] or {}).get(key)
    return {key: "" if isinstance(v, float) and math.isnan(v) else v for key, v in line.items()}


def _inert(text: str) -> str:
    """Keep a spreadsheet from taking a name for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
