"""Figures of the trained model: step sizes, norms, and how often its elements were trained."""

from collections.abc import Mapping, Sequence
from typing import Any

from nefl.report.datasets import Told, coverage_records, norm_records, step_records
from nefl.report.figure_parts import ONLY_SHOWN, PANEL, SUBMODEL, run_colour, run_names, shown, tip
from nefl.report.vega import Figure, Spec


def _by_place(told: Sequence[Told], place: str, value: str, records: list[Any]) -> Spec:
    """A number of each submodel along the model, a panel for each run."""
    inner: Spec = {
        "height": 220,
        "mark": {"type": "line", "point": {"size": 40, "filled": True}, "tooltip": True},
        "encoding": {
            "x": {
                "field": place,
                "type": "nominal",
                "sort": _in_order(records, place),
                "axis": {"title": place, "labelAngle": -60, "labelOverlap": True},
            },
            "y": {"field": value, "type": "quantitative", "scale": {"zero": False}},
            "color": SUBMODEL,
        },
    }
    base: Spec = {"params": [shown(told)], "transform": [ONLY_SHOWN]}
    if len(told) == 1:
        return {**base, **inner, "width": "container"}
    facet = {"field": "run", "type": "nominal", "title": None, "sort": run_names(told)}
    return {**base, "facet": facet, "columns": 3, "spec": {**inner, "width": PANEL}}


def _in_order(records: Sequence[Mapping[str, Any]], place: str) -> list[str]:
    """Return places in the order of the largest submodel, which has most of them."""
    by_size = sorted(records, key=lambda record: -int(record["submodel"]))
    return list(dict.fromkeys(str(record[place]) for record in by_size))


def steps(told: Sequence[Told]) -> Figure:
    """Step sizes by block and submodel."""
    records = step_records(told)
    about = "Step size of each residual block of each submodel at the newest checkpoint."
    spec = _by_place(told, "block", "step size", records)
    return Figure("step-sizes", "Step sizes", about, spec, records)


def norms(told: Sequence[Told]) -> Figure:
    """Average L1 norm by layer and submodel."""
    records = norm_records(told)
    about = "Mean absolute weight of each layer of each submodel at the newest checkpoint."
    spec = _by_place(told, "layer", "L1 norm", records)
    return Figure("l1-norms", "Average L1 norm of weights", about, spec, records)


def coverage(told: Sequence[Told]) -> Figure:
    """How often the elements of each tensor were trained."""
    records = coverage_records(told)
    tensors = list(dict.fromkeys(record["tensor"] for record in records))
    x = {"type": "quantitative", "axis": {"title": "updates of an element"}}
    tips = [tip("run"), tip("tensor"), tip("mean", ".1f"), tip("least", "d")]
    bar: Spec = {
        "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.5},
        "encoding": {"x": {"field": "least", **x}, "x2": {"field": "mean"}, "tooltip": tips},
    }
    dot: Spec = {
        "mark": {"type": "point", "filled": True, "size": 55},
        "encoding": {"x": {"field": "mean", **x}, "tooltip": tips},
    }
    spec: Spec = {
        "params": [shown(told)],
        "transform": [ONLY_SHOWN],
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "height": {"step": 16 if len(tensors) <= 40 else 7},
        "encoding": {
            "y": {
                "field": "tensor",
                "type": "nominal",
                "sort": tensors,
                "axis": {"title": None, "labelOverlap": True, "grid": True},
            },
            "color": run_colour(told),
        },
        "layer": [bar, dot],
    }
    about = (
        "How many updates the elements of each shared tensor were averaged from over the run: the "
        "dot is the mean, the bar reaches to the element that was trained least."
    )
    return Figure("coverage", "Coverage by tensor", about, spec, records)
