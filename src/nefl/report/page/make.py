"""A report: one page that holds its figures, its data and all it takes to draw them."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from nefl.report.figures.by_name import BY_COST, by_name
from nefl.report.figures.drawn_run import DrawnRun, drawn_runs, left_out, metric_of
from nefl.report.figures.parts import has_seeds, lines_of
from nefl.report.figures.run_records import EVALUATIONS
from nefl.report.figures.vega import Figure, browser_library
from nefl.report.page.packed import make_content, script_json
from nefl.report.page.run_texts import abouts_of, failures_of, problems_of, summary_of
from nefl.report.reading.runs import Run
from nefl.report.reading.scores import describe_metrics
from nefl.report.tables.comparison import compare
from nefl.report.tables.grids import footnotes, grids

SCORES, COST = "scores", "cost"
GROUPS: Sequence[tuple[str, str, tuple[str, ...]]] = (
    (SCORES, "Test {metric} by round", ("curves", "extremes", "loss")),
    (COST, "Test {metric} and cost", (*BY_COST, "searched")),
    ("steps", "Step sizes and weights", ("step-sizes", "l1-norms")),
    ("coverage", "Coverage by tensor", ("coverage",)),
    ("clients", "Clients and their data", ("tiers", "discards", "labels")),
    ("time", "Time and traffic", ("simulated-time", "by-time", "seconds", "traffic", "failures")),
)
GAPS_OF = {
    SCORES: (EVALUATIONS,),
    COST: ("costs",),
    "steps": ("weights", "step sizes"),
    "coverage": ("coverage",),
    "clients": ("labels", "tiers"),
    "time": ("rounds",),
}
"""Which gaps of `DrawnRun.missing` a group names."""

LIVE_PARTS = ("runs", "table", "failures")
"""Blocks of the template that a watched page puts in anew."""


@dataclass(frozen=True)
class Group:
    """A section of the page: figures that answer one question."""

    id: str
    title: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]


def make_page(runs: Sequence[Run], refused: Sequence[str] = (), *, watched: str = "") -> str:
    """Write the page of some runs.

    Args:
        runs: the runs.
        refused: what was given but is no run.
        watched: a version by which a watched page knows whether it is up to date; empty for a
            page that stands alone.

    Raises:
        ConfigError: if the library that draws is not installed.
    """
    library = browser_library_once()
    style, script = _text("page.css"), _text("page.js")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(library)} {_hash(script)}",
            f"style-src {_hash(style)}",
            "style-src-attr 'unsafe-inline'",  # Vega sets the size of what it draws
            "img-src data:",
            "connect-src 'self'" if watched else "connect-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    values = _values(runs, refused, watched) | {
        "policy": policy,
        "style": Markup(style),  # noqa: S704 - our own files, and packed JSON
        "library": Markup(library),  # noqa: S704
        "script": Markup(script),  # noqa: S704
    }
    values["content"] = Markup(script_json(values["content"].json))  # noqa: S704
    return _template().render(values)


def live_content(runs: Sequence[Run], refused: Sequence[str], watched: str) -> dict[str, Any]:
    """Return what a watched page puts in anew: its data, and parts of its HTML by their ids."""
    values = _values(runs, refused, watched)
    content = values["content"].json
    template = _template()
    context = template.new_context(values | {"content": ""})
    parts = {f"part-{name}": "".join(template.blocks[name](context)) for name in LIVE_PARTS}
    return {"content": content, "parts": parts}


def _values(runs: Sequence[Run], refused: Sequence[str], watched: str) -> dict[str, Any]:
    drawn = drawn_runs(runs)
    figures = by_name(drawn)
    groups = _groups(figures, drawn)
    metric = metric_of(drawn)
    names = [run.name for run in runs]
    content = make_content(names, figures, metric, live=bool(watched), version=watched)
    # What a watched page cannot put in anew: where it changes, the page is loaded again.
    fixed = [(group.notes, [(f.about, f.notes) for f in group.figures]) for group in groups]
    content.json["outline"] = hashlib.sha256(repr(fixed).encode()).hexdigest()[:16]
    comparison = compare(runs) if len(runs) > 1 else None
    failures, failure_line = failures_of(runs)
    submodels = max((len(run.scores) for run in runs if run.metric == metric), default=0)
    return {
        "title": runs[0].name if len(runs) == 1 else f"{len(runs)} runs of nefl",
        "version": version("nefl"),
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "live": bool(watched),
        "runs": [summary_of(each) for each in drawn],
        "metrics": describe_metrics(run.metric for run in runs),
        "abouts": abouts_of(runs),
        "problems": [*problems_of(runs), *(f"left out: {reason}" for reason in refused)],
        "grids": grids(comparison) if comparison else [],
        "footnotes": footnotes(comparison) if comparison else [],
        "groups": groups,
        "several_lines": len(lines_of(drawn)) > 1,
        "seeds": has_seeds(drawn),
        "measures": ["average", "worst", "best", *_submodels(submodels)],
        "failures": failures,
        "failure_line": failure_line,
        "keys": content.keys,
        "content": content,
    }


def _submodels(count: int) -> list[str]:
    return [f"submodel {number}" for number in range(1, count + 1)]


def _groups(figures: Mapping[str, Figure], drawn: Sequence[DrawnRun]) -> list[Group]:
    groups = []
    metric = metric_of(drawn).name
    for key, title, names in GROUPS:
        found = tuple(figures[name] for name in names if name in figures)
        gaps = [*GAPS_OF[key], *(["simulated time"] if "simulated-time" in figures else [])]
        notes = left_out(drawn, *gaps)
        if not found and not notes:
            notes = ["Nothing to show yet."]
        groups.append(Group(key, title.format(metric=metric), found, tuple(notes)))
    return groups


@lru_cache(maxsize=1)
def browser_library_once() -> str:
    """Bundle the browser's library once a process; it takes a second or two."""
    library = browser_library()
    if "</script" in library.lower():
        raise AssertionError("the library would end its own script element")
    return library


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(_text("page.html"))


def _text(name: str) -> str:
    return files("nefl.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
