"""The figures of runs, each a Vega-Lite description of what its records show."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nefl.report.datasets import (
    Told,
    accuracy_records,
    cost_records,
    coverage_records,
    label_records,
    norm_records,
    round_records,
    simulated_records,
    step_records,
    submodel_records,
    tier_records,
)
from nefl.report.vega import Figure, Spec

PANEL = 250
"""Width in pixels of a panel, where a figure has one for each run."""
COLOURS_IN_TURN = 7
ONLY_SHOWN = {"filter": "indexof(shown, datum.run) >= 0"}


def by_name(told: Sequence[Told]) -> dict[str, Figure]:
    """Return all figures that the runs have data for."""
    figures = (make(told) for make in FIGURES.values())
    return {figure.name: figure for figure in figures if figure.records}


def _runs(told: Sequence[Told]) -> list[str]:
    return [each.run.name for each in told]


def _shown(told: Sequence[Told]) -> Spec:
    """The switch by which a page takes runs out of a figure."""
    return {"name": "shown", "value": _runs(told)}


def _run_colour(told: Sequence[Told]) -> Spec:
    legend = {"orient": "bottom", "columns": 3, "title": None, "symbolStrokeWidth": 2}
    return {
        "field": "run",
        "type": "nominal",
        "scale": {"domain": _runs(told)},  # a run keeps its colour when others are switched off
        "legend": legend if len(told) > 1 else None,
    }


def _run_dash(told: Sequence[Told]) -> Spec:
    """Colours return after seven runs; then dashes tell runs apart."""
    dashes = ([1, 0], [6, 3], [2, 2])
    return {
        "field": "run",
        "type": "nominal",
        "scale": {
            "domain": _runs(told),
            "range": [dashes[n // COLOURS_IN_TURN % 3] for n in range(len(told))],
        },
        "legend": None,
    }


SUBMODEL = {"field": "submodel", "type": "ordinal", "legend": {"title": "submodel"}}
ROUND = {"field": "round", "type": "quantitative", "axis": {"title": "round", "tickMinStep": 1}}


def _lines(layers: Spec, encoding: Spec, tooltip: list[Spec]) -> Spec:
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


def _tip(field: str, form: str = "") -> Spec:
    kind = {"type": "quantitative", "format": form} if form else {"type": "nominal"}
    return {"field": field, **kind}


def curves(told: Sequence[Told]) -> Figure:
    """Accuracy by round: of each submodel for one run, of a chosen measure for several."""
    accuracy = {
        "type": "quantitative",
        "axis": {"title": "test accuracy, %"},
        "scale": {"zero": False},
    }
    if len(told) == 1:
        spec = _lines(
            {"params": [_shown(told)]},
            {"x": ROUND, "y": {"field": "accuracy", **accuracy}, "color": SUBMODEL},
            [_tip("submodel"), _tip("round", "d"), _tip("accuracy", ".2f")],
        )
        about = "Test accuracy of each submodel by round; 1 is the smallest."
        return Figure("curves", "Accuracy by round", about, spec, submodel_records(told))
    spec = _lines(
        {
            "params": [_shown(told), {"name": "measure", "value": "average"}],
            "transform": [
                ONLY_SHOWN,
                {"calculate": "datum[measure]", "as": "accuracy"},
                {"filter": "isValid(datum.accuracy)"},
            ],
        },
        {
            "x": ROUND,
            "y": {"field": "accuracy", **accuracy},
            "color": _run_colour(told),
            "strokeDash": _run_dash(told),
        },
        [_tip("run"), _tip("round", "d"), _tip("accuracy", ".2f")],
    )
    about = "Test accuracy by round, a line for each run: the average over its submodels."
    return Figure("curves", "Accuracy by round", about, spec, accuracy_records(told))


def extremes(told: Sequence[Told]) -> Figure:
    """The worst, average and best submodel by round."""
    base = {
        "params": [_shown(told)],
        "transform": [
            ONLY_SHOWN,
            {"fold": ["worst", "average", "best"], "as": ["measure", "accuracy"]},
        ],
    }
    order = {"sort": ["worst", "average", "best"]}
    measure = {"field": "measure", "type": "nominal", **order}
    y = {
        "field": "accuracy",
        "type": "quantitative",
        "axis": {"title": "test accuracy, %"},
        "scale": {"zero": False},
    }
    about = "Worst (the smallest submodel), average over all submodels, and best, by round."
    title = "Worst, average, best"
    if len(told) == 1:
        encoding = {"x": ROUND, "y": y, "color": measure | {"legend": {"title": None}}}
        tips = [_tip("measure"), _tip("round", "d"), _tip("accuracy", ".2f")]
        return Figure(
            "extremes", title, about, _lines(base, encoding, tips), accuracy_records(told)
        )
    spec: Spec = {
        **base,
        "facet": {"column": measure | {"title": None}},
        "spec": {
            "width": PANEL,
            "height": 220,
            "mark": {"type": "line", "tooltip": True},
            "encoding": {
                "x": ROUND,
                "y": y,
                "color": _run_colour(told),
                "strokeDash": _run_dash(told),
            },
        },
    }
    return Figure("extremes", title, about, spec, accuracy_records(told))


def panels(told: Sequence[Told]) -> Figure:
    """The paper's learning curves: a panel for each run, a line for each submodel."""
    spec: Spec = {
        "params": [_shown(told)],
        "transform": [ONLY_SHOWN],
        "facet": {"field": "run", "type": "nominal", "title": None, "sort": _runs(told)},
        "columns": min(3, len(told)),
        "spec": {
            "width": PANEL,
            "height": 190,
            "mark": "line",
            "encoding": {
                "x": ROUND,
                "y": {
                    "field": "accuracy",
                    "type": "quantitative",
                    "axis": {"title": "test accuracy, %"},
                },
                "color": SUBMODEL,
            },
        },
    }
    about = "Test accuracy of each submodel by round, a panel for each run."
    return Figure("learning-curves", "Learning curves", about, spec, submodel_records(told))


def cost(kind: str, title: str, unit: str) -> Callable[[Sequence[Told]], Figure]:
    """Accuracy against one kind of cost."""

    def make(told: Sequence[Told]) -> Figure:
        tips = [_tip("run"), _tip("submodel"), _tip("accuracy", ".2f"), _tip(kind, ".3s")]
        spec: Spec = {
            "params": [_shown(told)],
            "transform": [ONLY_SHOWN],
            "width": "container",
            "height": 240,
            "mark": {"type": "line", "point": {"size": 60, "filled": True}},
            "encoding": {
                "x": {
                    "field": kind,
                    "type": "quantitative",
                    "scale": {"type": "log", "nice": False, "padding": 16},
                    "axis": {"title": title, "format": ".2s", "tickCount": 5},
                },
                "y": {
                    "field": "accuracy",
                    "type": "quantitative",
                    "scale": {"zero": False},
                    "axis": {"title": "test accuracy, %"},
                },
                "order": {"field": kind, "type": "quantitative"},
                "color": _run_colour(told),
                "tooltip": tips,
            },
        }
        about = f"Last test accuracy of each submodel against its {unit}."
        name = f"accuracy-by-{kind.lower()}"
        return Figure(name, f"Accuracy by {kind}", about, spec, cost_records(told))

    return make


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
    base: Spec = {"params": [_shown(told)], "transform": [ONLY_SHOWN]}
    if len(told) == 1:
        return {**base, **inner, "width": "container"}
    facet = {"field": "run", "type": "nominal", "title": None, "sort": _runs(told)}
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
    tips = [_tip("run"), _tip("tensor"), _tip("mean", ".1f"), _tip("least", "d")]
    bar: Spec = {
        "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.5},
        "encoding": {"x": {"field": "least", **x}, "x2": {"field": "mean"}, "tooltip": tips},
    }
    dot: Spec = {
        "mark": {"type": "point", "filled": True, "size": 55},
        "encoding": {"x": {"field": "mean", **x}, "tooltip": tips},
    }
    spec: Spec = {
        "params": [_shown(told)],
        "transform": [ONLY_SHOWN],
        "width": "container",
        "height": {"step": 16 if len(tensors) <= 40 else 7},
        "encoding": {
            "y": {
                "field": "tensor",
                "type": "nominal",
                "sort": tensors,
                "axis": {"title": None, "labelOverlap": True, "grid": True},
            },
            "color": _run_colour(told),
        },
        "layer": [bar, dot],
    }
    about = (
        "How many updates the elements of each shared tensor were averaged from over the run: the "
        "dot is the mean, the bar reaches to the element that was trained least."
    )
    return Figure("coverage", "Coverage by tensor", about, spec, records)


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
        "params": [_shown(told)],
        "transform": [ONLY_SHOWN],
        "facet": {"field": "run", "type": "nominal", "title": None, "sort": _runs(told)},
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
    base: Spec = {"params": [_shown(told)], "transform": [ONLY_SHOWN]}
    spec = {**base, **inner, "width": "container"}
    if len(told) > 1:
        facet = {"field": "run", "type": "nominal", "title": None}
        spec = {**base, "facet": facet, "columns": 3, "spec": {**inner, "width": PANEL}}
    about = (
        "Simulated hours up to each round: with nested submodels, if everyone trained the full "
        "model (the price of waiting for stragglers), and with only the clients that fit it."
    )
    return Figure("simulated-time", "Simulated time", about, spec, simulated_records(told))


def rounds(field: str, name: str, title: str, about: str) -> Callable[[Sequence[Told]], Figure]:
    """Something measured in every round."""

    def make(told: Sequence[Told]) -> Figure:
        spec = _lines(
            {"params": [_shown(told)], "transform": [ONLY_SHOWN]},
            {
                "x": ROUND,
                "y": {"field": field, "type": "quantitative", "axis": {"title": title}},
                "color": _run_colour(told),
                "strokeDash": _run_dash(told),
            },
            [_tip("run"), _tip("round", "d"), _tip(field, ".4~g")],
        )
        spec["height"] = 200
        records = round_records(told)
        if field == "failures" and not any(record["failures"] for record in records):
            records = []
        return Figure(name, title[0].upper() + title[1:], about, spec, records)

    return make


FIGURES: Mapping[str, Callable[[Sequence[Told]], Figure]] = {
    "curves": curves,
    "extremes": extremes,
    "learning-curves": panels,
    "accuracy-by-macs": cost("MACs", "MACs of a forward pass", "multiply-accumulates"),
    "accuracy-by-parameters": cost("parameters", "parameters", "number of parameters"),
    "accuracy-by-bytes": cost("bytes", "bytes sent each way", "bytes to send it"),
    "step-sizes": steps,
    "l1-norms": norms,
    "coverage": coverage,
    "labels": labels,
    "tiers": tiers,
    "simulated-time": simulated,
    "loss": rounds("loss", "loss", "training loss", "Mean training loss of each round's clients."),
    "failures": rounds("failures", "failures", "failures", "Failed and refused updates by round."),
    "seconds": rounds("seconds", "seconds", "seconds a round", "Wall time of each round."),
    "traffic": rounds(
        "MiB", "traffic", "MiB sent a round", "Bytes sent to clients and back, by round."
    ),
}
