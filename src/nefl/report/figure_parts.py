"""What figures are made of: colours of runs, lines with a point under the pointer, switches."""

from collections.abc import Sequence

from nefl.report.datasets import Told
from nefl.report.vega import Spec

PANEL = 250
"""Width in pixels of a panel, where a figure has one for each run."""
COLOURS_IN_TURN = 7
ONLY_SHOWN = {"filter": "indexof(shown, datum.run) >= 0"}


def run_names(told: Sequence[Told]) -> list[str]:
    """Return the runs' names in order."""
    return [each.run.name for each in told]


def shown(told: Sequence[Told]) -> Spec:
    """The switch by which a page takes runs out of a figure."""
    return {"name": "shown", "value": run_names(told)}


def run_colour(told: Sequence[Told]) -> Spec:
    """A colour for each run."""
    return {
        "field": "run",
        "type": "nominal",
        "scale": {"domain": run_names(told)},  # a run keeps its colour when others are switched off
        "legend": _run_legend(told),
    }


def _run_legend(told: Sequence[Told]) -> Spec | None:
    legend = {
        "orient": "bottom",
        "columns": 3,
        "title": None,
        "symbolStrokeWidth": 2,
        "symbolLimit": 0,
    }
    return legend if len(told) > 1 else None


def run_dash(told: Sequence[Told]) -> Spec:
    """Colours return after seven runs; then dashes tell runs apart."""
    dashes = ([1, 0], [6, 3], [2, 2])
    return {
        "field": "run",
        "type": "nominal",
        "scale": {
            "domain": run_names(told),
            "range": [dashes[n // COLOURS_IN_TURN % 3] for n in range(len(told))],
        },
        "legend": _run_legend(told),
    }


SUBMODEL = {"field": "submodel", "type": "ordinal", "legend": {"title": "submodel"}}
ROUND = {"field": "round", "type": "quantitative", "axis": {"title": "round", "tickMinStep": 1}}


def lines(layers: Spec, encoding: Spec, tooltip: list[Spec]) -> Spec:
    """Lines, and the point of them nearest to the pointer with what it says."""
    hover = {
        "name": "hover",
        "select": {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"},
    }
    point = {
        "mark": {"type": "point", "filled": True, "size": 70},
        "params": [hover],
        "encoding": {
            "opacity": {"condition": {"param": "hover", "empty": False, "value": 1}, "value": 0},
            "tooltip": tooltip,
            "strokeDash": {"value": [1, 0]},
        },
    }
    return {
        **layers,
        "width": "container",
        "height": 300,
        "encoding": encoding,
        "layer": [{"mark": {"type": "line", "interpolate": "linear"}}, point],
    }


def tip(field: str, form: str = "") -> Spec:
    """A line of what is shown under the pointer; with a number's format if it is one."""
    kind = {"type": "quantitative", "format": form} if form else {"type": "nominal"}
    return {"field": field, **kind}
