"""Figures of whole studies: results by method, by architecture, by number of clients."""

import math
from collections.abc import Sequence
from typing import Any

from nefl.measured import MeasuredBy
from nefl.report.figures.parts import SUBMODEL, deviation_bar, score_channel
from nefl.report.figures.run_records import SCORE
from nefl.report.figures.vega import Figure, Spec
from nefl.report.reading.gathering import effective, leading_metric, title_of, varied_keys
from nefl.report.reading.runs import Run
from nefl.report.reading.scores import (
    best_first,
    drawn_score,
    score_axis,
    which_is_better,
    with_arrow,
)
from nefl.report.tables.comparison import Row, Section, Spread, compare

LONGEST_NAME = 260
"""Pixels of a method's name beside its line."""


def _of_one_metric(runs: Sequence[Run]) -> tuple[MeasuredBy, list[Run], tuple[str, ...]]:
    """Return what most runs are measured by, the runs like them, and a note on others."""
    metric = leading_metric(runs)
    others = ", ".join(run.name for run in runs if run.metric != metric)
    note = f"{others}: left out, the figure is of {with_arrow(metric)}"
    return metric, [run for run in runs if run.metric == metric], (note,) if others else ()


def by_method(runs: Sequence[Run]) -> Figure:
    """Every method in a line: the metric of each submodel and the average, seeds averaged."""
    metric, runs, notes = _of_one_metric(runs)
    sections = compare(runs, members=True).sections
    records: list[dict[str, Any]] = [
        {"section": section.title, "method": row.name, **values}
        for section in sections
        for row in section.rows
        for values in _scores(row)
    ]
    notes += tuple(note for section in sections for note in _partly(section))
    known = [(record["average"], record["method"]) for record in records if "average" in record]
    order = best_first(metric, known)
    titles = [section.title for section in sections]
    column: Spec = {"field": "section", "type": "nominal", "title": None, "sort": titles}
    lines = method_lines(list(dict.fromkeys(order)), score_channel(score_axis(metric)))
    about = (
        f"The test {metric.name} of each submodel and, as an upright stroke, their average; "
        f"{which_is_better(metric)}. The bar is a standard deviation of the average over seeds. "
        "Members that were trained alone are one method."
    )
    spec: Spec = {"facet": {"column": column}, "spec": lines} if len(titles) > 1 else lines
    return Figure("by-method", f"The test {metric.name} by method", about, spec, records, notes)


def _partly(section: Section) -> list[str]:
    """Say of which submodels an average is where not every member was trained alone."""
    most = max(row.submodels for row in section.rows)
    partly = [row for row in section.rows if row.alone and 0 < row.submodels < most]
    return [
        f"{row.name}: its average is over submodels {', '.join(map(str, row.scores))} alone"
        for row in partly
    ]


def _scores(row: Row) -> list[dict[str, float | None]]:
    """Return the average with its spread, then each submodel, as figures draw them."""
    average = row.measures["average"]
    if not math.isfinite(average.mean):
        return []
    found = [_drawn(row, {"average": average.mean, **_ends(average)})]
    if row.submodels > 1 or row.alone:  # the only model of FedAvg is no submodel
        found += [
            {"submodel": number, **_drawn(row, {SCORE: scores.mean})}
            for number, scores in row.scores.items()
        ]
    return found


def _ends(found: Spread) -> dict[str, float]:
    spread = found.spread if math.isfinite(found.spread) else 0.0
    return {"low": found.mean - spread, "high": found.mean + spread}


def _drawn(row: Row, values: dict[str, float]) -> dict[str, float | None]:
    return {name: drawn_score(row.metric, value) for name, value in values.items()}


def method_lines(order: list[str], x: Spec) -> Spec:
    """Return a line for each method: its submodels, and its average with a bar for the spread.

    Args:
        order: the methods, from above.
        x: the channel of scores.
    """
    averages, submodels = ([{"filter": f"isValid(datum.{field})"}] for field in ("average", SCORE))
    stroke = {"type": "tick", "thickness": 2.5, "size": 15, "opacity": 1, "tooltip": True}
    return {
        "width": 340,
        "height": {"step": 19},
        "encoding": {
            "y": {
                "field": "method",
                "type": "nominal",
                "sort": order,
                "axis": {"title": None, "grid": True, "labelLimit": LONGEST_NAME},
            }
        },
        "layer": [
            {
                "transform": averages,
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"x": x | {"field": "low"}, "x2": {"field": "high"}},
            },
            {
                "transform": submodels,
                "mark": {
                    "type": "point",
                    "filled": True,
                    "size": 45,
                    "opacity": 1,
                    "tooltip": True,
                },
                "encoding": {"x": x, "color": SUBMODEL},
            },
            {
                "transform": averages,
                "mark": stroke,
                "encoding": {"x": x | {"field": "average"}},
            },
        ],
    }


def by_setting(runs: Sequence[Run], key: str, name: str, title: str) -> Figure:
    """Average and worst submodel by a setting, methods and seeds gathered as in comparisons.

    Numbers are joined by lines; of names each has its dots side by side. Where the setting has one
    value, methods stand one below the other.

    Args:
        runs: the runs.
        key: the setting, by its dotted key.
        name: the figure's name.
        title: what the setting is called.
    """
    metric, runs, notes = _of_one_metric(runs)
    sections = compare(runs, members=True).sections
    rows = [row for section in sections for row in section.rows]
    settings = [effective(row.runs[0]) for row in rows]
    others = [k for k in varied_keys(settings) if k != key]
    records = [
        record
        for row, own in zip(rows, settings, strict=True)
        for measure in ("average", "worst")
        for record in _point(row, measure, own[key], title_of(own, others))
    ]
    values = list(dict.fromkeys(record["setting"] for record in records))
    channel = score_channel(score_axis(metric))
    if len(values) <= 1:
        averages = [(r[SCORE], r["method"]) for r in records if r["measure"] == "average"]
        inner = _one_value(best_first(metric, averages), channel)
    elif all(isinstance(value, int | float) for value in values):
        inner = _joined(title, sorted(values), channel)
    else:
        inner = _side_by_side(title, channel)
    spec: Spec = {
        "facet": {"column": {"field": "measure", "type": "nominal", "title": None}},
        "spec": inner,
    }
    about = (
        f"The average and the worst test {metric.name} by {title}; {which_is_better(metric)}. Bars "
        "are a standard deviation over seeds."
    )
    if len(values) == 1:
        about = f"{about} All runs have the same: {values[0]}."
    return Figure(name, f"The test {metric.name} by {title}", about, spec, records, notes)


def _point(row: Row, measure: str, value: Any, section: str) -> list[dict[str, Any]]:
    found = row.measures[measure]
    if not math.isfinite(found.mean):
        return []
    return [
        {
            "method": ", ".join(filter(None, (row.name, section))),
            "measure": measure,
            "setting": value,
            **_drawn(row, {SCORE: found.mean, **_ends(found)}),
        }
    ]


_METHOD: Spec = {
    "field": "method",
    "type": "nominal",
    "sort": None,
    "legend": {"orient": "bottom", "columns": 2, "title": None, "symbolLimit": 0},
}


def _bars(along: str, channel: Spec, mark: Spec) -> list[Spec]:
    """The metric along an axis, with a bar for its spread."""
    point: Spec = {"mark": {"tooltip": True, **mark}, "encoding": {along: channel}}
    return [deviation_bar(along, channel), point]


def _joined(title: str, values: list[float], channel: Spec) -> Spec:
    x: Spec = {
        "field": "setting",
        "type": "quantitative",
        "axis": {"title": title, "labelAngle": 0, "values": values, "labelOverlap": True},
        "scale": {"zero": False, "padding": 12},
    }
    line = {"type": "line", "point": {"size": 50, "filled": True}}
    layers = _bars("y", channel, line)
    return {"width": 230, "height": 220, "encoding": {"x": x, "color": _METHOD}, "layer": layers}


def _side_by_side(title: str, channel: Spec) -> Spec:
    """Dots without lines, since names have no distances."""
    x: Spec = {"field": "setting", "type": "nominal", "sort": None}
    x["axis"] = {"title": title, "labelAngle": 0}
    encoding = {"x": x, "xOffset": {"field": "method", "sort": None}, "color": _METHOD}
    layers = _bars("y", channel, {"type": "point", "filled": True, "size": 60, "opacity": 1})
    return {"width": 230, "height": 220, "encoding": encoding, "layer": layers}


def _one_value(order: list[str], channel: Spec) -> Spec:
    y: Spec = {"field": "method", "type": "nominal", "sort": order}
    y["axis"] = {"title": None, "grid": True, "labelLimit": LONGEST_NAME}
    layers = _bars("x", channel, {"type": "point", "filled": True, "size": 60, "opacity": 1})
    return {"width": 230, "height": {"step": 22}, "encoding": {"y": y}, "layer": layers}


def by_architecture(runs: Sequence[Run]) -> Figure:
    """The paper's figure of results with different models."""
    return by_setting(runs, "model.name", "by-architecture", "architecture")


def by_clients(runs: Sequence[Run]) -> Figure:
    """The paper's figure of results with different numbers of clients."""
    return by_setting(runs, "clients.count", "by-clients", "number of clients")
