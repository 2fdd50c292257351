"""What figures are made of: lines over seeds with their band, panels, whole ticks, switches."""

from collections.abc import Sequence

from nefl.report.figures.drawn_run import DrawnRun, Record
from nefl.report.figures.run_records import SCORE
from nefl.report.figures.vega import Spec

PANEL = 250
"""Width in pixels of a panel, where a figure has one for each line."""
COLOURS_IN_TURN = 7
MOST_TICKS = 8
LONG_NAME = 20
"""Letters of a line's name from which a legend has fewer columns."""
NUMBER = ".4~r"
"""How numbers of an axis are written; left to itself a single tick at 2.47 would read 2."""
SHOWN = {"filter": "indexof(shown, datum.run) >= 0"}


def switches(drawn: Sequence[DrawnRun]) -> list[Spec]:
    """What a page switches: which runs are shown, and whether seeds are averaged or drawn each."""
    return [
        {"name": "shown", "value": [each.run.name for each in drawn]},
        {"name": "seeds", "value": "averaged"},
    ]


def switched(drawn: Sequence[DrawnRun], *transform: Spec) -> Spec:
    """What every figure begins with: its switches, and how its records are prepared."""
    return {"params": switches(drawn), "transform": list(transform)}


def wide(inner: Spec, height: int | Spec) -> Spec:
    """One view, as wide as the page."""
    return {**inner, "width": "container", "height": height}


def wide_or_panels(drawn: Sequence[DrawnRun], inner: Spec, height: int | Spec) -> Spec:
    """One view for one line, a panel for each of several."""
    if len(lines_of(drawn)) > 1:
        return panels_of(drawn, {**inner, "height": height})
    return wide(inner, height)


def those_in(drawn: Sequence[DrawnRun], records: Sequence[Record]) -> list[DrawnRun]:
    """Return the runs that have records."""
    known = {record["run"] for record in records}
    return [each for each in drawn if each.run.name in known]


def lines_of(drawn: Sequence[DrawnRun]) -> list[str]:
    """Return the names of the lines, in order."""
    return list(dict.fromkeys(each.line for each in drawn))


def has_seeds(drawn: Sequence[DrawnRun]) -> bool:
    """Whether any line stands for several runs."""
    return len(lines_of(drawn)) < len(drawn)


def over_seeds(value: str, *by: str, also: Sequence[str] = ()) -> list[Spec]:
    """Average the runs of each line: `value` is their mean, `low` and `high` a deviation from it.

    The deviation is that of a sample, n - 1, as in comparisons. A point stands only where all runs
    of its line have one: a mean over fewer would jump. `drawn` is the line, or the run where the
    page asks for every run.

    Args:
        value: what is averaged.
        by: what else tells points apart: the round, the submodel.
        also: further fields that are averaged, without a deviation.
    """
    means = [{"op": "mean", "field": field, "as": field} for field in (value, *also)]
    return [
        SHOWN,
        {"filter": f"isValid(datum['{value}'])"},
        {"calculate": "seeds == 'each' ? datum.run : datum.line", "as": "drawn"},
        {
            "joinaggregate": [{"op": "distinct", "field": "run", "as": "runs"}],
            "groupby": ["drawn"],
        },
        {
            "aggregate": [
                *means,
                {"op": "stdev", "field": value, "as": "deviation"},
                {"op": "distinct", "field": "run", "as": "found"},
                {"op": "min", "field": "runs", "as": "runs"},
            ],
            "groupby": ["drawn", "line", *by],
        },
        {"filter": "datum.found == datum.runs"},
        {"calculate": "datum.runs > 1 ? datum.deviation : 0", "as": "deviation"},
        {"calculate": f"datum['{value}'] - datum.deviation", "as": "low"},
        {"calculate": f"datum['{value}'] + datum.deviation", "as": "high"},
    ]


def line_colour(
    drawn: Sequence[DrawnRun], named: Sequence[DrawnRun] | None = None, *, narrow: bool = False
) -> Spec:
    """A colour for each line; it stays when others are switched off.

    Args:
        drawn: the runs.
        named: those whose lines stand in the legend; all, if left out.
        narrow: whether the figure has a third of the page, and room for a column less.
    """
    lines = lines_of(drawn if named is None else named)
    columns = (2 if max(map(len, lines), default=0) > LONG_NAME else 3) - narrow
    return _by_line(drawn, {}, {"columns": columns, "values": lines})


def line_dash(drawn: Sequence[DrawnRun]) -> Spec:
    """Colours return after seven lines; then dashes tell them apart."""
    dashes = ([1, 0], [6, 3], [2, 2])
    turns = [dashes[n // COLOURS_IN_TURN % 3] for n in range(len(lines_of(drawn)))]
    return _by_line(drawn, {"range": turns}, {})  # its legend is that of the colours


def _by_line(drawn: Sequence[DrawnRun], scale: Spec, legend: Spec) -> Spec:
    lines = lines_of(drawn)
    stroke: Spec = {
        "orient": "bottom",
        "title": None,
        "symbolType": "stroke",
        "symbolStrokeWidth": 3,
        "symbolOpacity": 1,  # not that of the band
        "symbolLimit": 0,
    }
    return {
        "field": "line",
        "type": "nominal",
        "scale": {"domain": lines, **scale},
        "legend": {**stroke, **legend} if len(lines) > 1 else None,
    }


def whole(channel: str, title: str, most: int = MOST_TICKS) -> Spec:
    """An axis of counts: its ticks are whole numbers, however short it is.

    A least step of 1 is not enough: over one round it leaves room for two ticks, so for 1.5.
    """
    span = f"abs(domain('{channel}')[1] - domain('{channel}')[0])"
    return {
        "title": title,
        "format": "d",
        "tickCount": {"expr": f"clamp(floor({span}), 1, {most})"},
    }


SUBMODEL = {
    "field": "submodel",
    "type": "ordinal",
    "legend": {"title": "submodel", "symbolOpacity": 1},
}
ROUND = {"field": "round", "type": "quantitative", "axis": whole("x", "round")}


def score_channel(title: str) -> Spec:
    """An axis of the primary metric."""
    return {
        "field": SCORE,
        "type": "quantitative",
        "scale": {"zero": False},
        "axis": {"title": title, "format": NUMBER},
    }


def deviation_bar(along: str, channel: Spec) -> Spec:
    """A bar from `low` to `high` along an axis."""
    return {
        "mark": {"type": "rule", "strokeWidth": 1.5},
        "encoding": {along: channel | {"field": "low"}, f"{along}2": {"field": "high"}},
    }


def curves_of(
    drawn: Sequence[DrawnRun],
    y: Spec,
    encoding: Spec,
    tooltip: Sequence[Spec],
    *,
    dashed: bool = False,
) -> Spec:
    """Lines with their bands, and the point nearest to the pointer with what it says.

    A line of one point would not be seen, so its point is.

    Args:
        drawn: the runs.
        y: what is drawn, from `over_seeds`.
        encoding: the other channels.
        tooltip: what is said under the pointer.
        dashed: whether lines that share a colour differ by their dashes.
    """
    dash = {"strokeDash": line_dash(drawn)} if dashed else {}
    hover = {
        "name": "hover",
        "select": {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"},
    }
    seen = [
        {"param": "hover", "empty": False, "value": 1},
        {"test": "datum.points == 1", "value": 1},
    ]
    band: Spec = {
        "mark": {"type": "area", "opacity": 0.13, "strokeWidth": 0},
        "encoding": {"y": y | {"field": "low"}, "y2": {"field": "high"}},
    }
    point: Spec = {
        "mark": {"type": "point", "filled": True, "size": 70},
        "params": [hover],
        "encoding": {
            "y": y,
            "opacity": {"condition": seen, "value": 0},
            "tooltip": list(tooltip),
        },
    }
    line: Spec = {"mark": {"type": "line"}, "encoding": {"y": y, **dash}}
    detail = {"detail": {"field": "drawn", "type": "nominal"}}
    bands = [band] if has_seeds(drawn) else []
    return {"encoding": {**encoding, **detail}, "layer": [*bands, line, point]}


def counted_points(*series: str) -> Spec:
    """Count the points of each line, for `curves_of`."""
    return {
        "joinaggregate": [{"op": "count", "as": "points"}],
        "groupby": ["drawn", *series],
    }


def panels_of(drawn: Sequence[DrawnRun], inner: Spec, columns: int = 3, width: int = PANEL) -> Spec:
    """A panel for each line, or for each run where the page asks for every run."""
    names = [*lines_of(drawn), *(each.run.name for each in drawn)]
    count = len(lines_of(drawn))
    facet: Spec = {
        "field": "drawn",
        "type": "nominal",
        "title": None,
        "sort": list(dict.fromkeys(names)),
        "header": {"labelLimit": width},
    }
    return {
        "facet": facet,
        "columns": 2 if (count, columns) == (4, 3) else min(columns, count),
        "spec": {**inner, "width": width},
    }


def tip(field: str, form: str = "", title: str = "") -> Spec:
    """A line of what is shown under the pointer; with a number's format if it is one."""
    kind = {"type": "quantitative", "format": form} if form else {"type": "nominal"}
    return {"field": field, **kind, **({"title": title} if title else {})}


def tips(drawn: Sequence[DrawnRun], *own: Spec) -> list[Spec]:
    """What a point says: its line or run, what is its own, and how far its seeds are apart."""
    spread = [tip("deviation", ".3~g", "± over seeds"), tip("runs", "d", "seeds")]
    return [tip("drawn", title="run"), *own, *(spread if has_seeds(drawn) else [])]


BARS = " Points and bars are the mean over seeds and a standard deviation."
OVER_SEEDS = " Lines and bands are the mean over seeds and a standard deviation."


def about_seeds(drawn: Sequence[DrawnRun], text: str = OVER_SEEDS) -> str:
    """What a caption adds where lines stand for several runs."""
    return text if has_seeds(drawn) else ""
