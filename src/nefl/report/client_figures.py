"""Figures of the clients: their labels, their tiers, their simulated time."""

from collections.abc import Sequence

from nefl.report.datasets import Told, label_records, simulated_records, tier_records
from nefl.report.figure_parts import ONLY_SHOWN, PANEL, ROUND, run_names, shown
from nefl.report.vega import Figure, Spec


def labels(told: Sequence[Told]) -> Figure:
    """Examples of each class at each client."""
    records = label_records(told)
    runs = list(dict.fromkeys(record["run"] for record in records))
    inner: Spec = {
        "height": 220,
        "mark": {"type": "rect", "tooltip": True},
        "encoding": {
            "x": {
                "field": "client",
                "type": "ordinal",
                "axis": {"labelOverlap": True, "labelAngle": 0},
            },
            "y": {"field": "class", "type": "nominal", "sort": None, "axis": {"title": None}},
            "color": {"field": "examples", "type": "quantitative"},
        },
    }
    if len(runs) <= 1:
        spec: Spec = {**inner, "width": "container"}
    else:
        facet = {"field": "run", "type": "nominal", "title": None, "sort": runs}
        spec = {"facet": facet, "columns": 2, "spec": {**inner, "width": PANEL * 3 // 2}}
    about = "Examples of each class at each client, once for each different partition."
    return Figure("labels", "Label distribution over clients", about, spec, records)


def tiers(told: Sequence[Told]) -> Figure:
    """Which submodels clients of each tier trained how often."""
    records = tier_records(told)
    cells: Spec = {
        "width": 210,
        "height": {"step": 26},
        "encoding": {
            "x": {"field": "submodel", "type": "ordinal", "axis": {"labelAngle": 0}},
            "y": {"field": "tier", "type": "nominal", "sort": None, "axis": {"title": None}},
        },
        "layer": [
            {
                "mark": {"type": "rect", "tooltip": True, "opacity": 0.55},
                "encoding": {"color": {"field": "updates", "type": "quantitative"}},
            },
            {
                "mark": {"type": "text", "fontSize": 11},
                "encoding": {"text": {"field": "updates", "type": "quantitative"}},
            },
        ],
    }
    spec: Spec = {
        "params": [shown(told)],
        "transform": [ONLY_SHOWN],
        "facet": {"field": "run", "type": "nominal", "title": None, "sort": run_names(told)},
        "columns": 3,
        "spec": cells,
    }
    about = "How many updates of each submodel came from clients of each tier or kind of device."
    return Figure("tiers", "Who trained which submodel", about, spec, records)


def simulated(told: Sequence[Told]) -> Figure:
    """Simulated time, and what waiting for stragglers would cost."""
    inner: Spec = {
        "height": 240,
        "mark": {"type": "line", "tooltip": True},
        "encoding": {
            "x": ROUND,
            "y": {"field": "hours", "type": "quantitative", "axis": {"title": "simulated hours"}},
            "color": {"field": "way", "type": "nominal", "legend": {"title": None}},
        },
    }
    base: Spec = {"params": [shown(told)], "transform": [ONLY_SHOWN]}
    spec = {**base, **inner, "width": "container"}
    if len(told) > 1:
        facet = {"field": "run", "type": "nominal", "title": None}
        spec = {**base, "facet": facet, "columns": 3, "spec": {**inner, "width": PANEL}}
    about = (
        "Simulated hours up to each round: with nested submodels, if everyone trained the full "
        "model (the price of waiting for stragglers), and with only the clients that fit it."
    )
    return Figure("simulated-time", "Simulated time", about, spec, simulated_records(told))
