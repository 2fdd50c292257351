"""Figures of accuracy, by round and by cost, and of what each round took."""

from collections.abc import Callable, Sequence

from nefl.report.datasets import (
    Told,
    accuracy_records,
    cost_records,
    round_records,
    submodel_records,
)
from nefl.report.figure_parts import (
    ONLY_SHOWN,
    PANEL,
    ROUND,
    SUBMODEL,
    lines,
    run_colour,
    run_dash,
    run_names,
    shown,
    tip,
)
from nefl.report.vega import Figure, Spec


def curves(told: Sequence[Told]) -> Figure:
    """Accuracy by round: of each submodel for one run, of a chosen measure for several."""
    accuracy = {
        "type": "quantitative",
        "axis": {"title": "test accuracy, %"},
        "scale": {"zero": False},
    }
    if len(told) == 1:
        spec = lines(
            {"params": [shown(told)]},
            {"x": ROUND, "y": {"field": "accuracy", **accuracy}, "color": SUBMODEL},
            [tip("submodel"), tip("round", "d"), tip("accuracy", ".2f")],
        )
        about = "Test accuracy of each submodel by round; 1 is the smallest."
        return Figure("curves", "Accuracy of each submodel", about, spec, submodel_records(told))
    spec = lines(
        {
            "params": [shown(told), {"name": "measure", "value": "average"}],
            "transform": [
                ONLY_SHOWN,
                {"calculate": "datum[measure]", "as": "accuracy"},
                {"filter": "isValid(datum.accuracy)"},
            ],
        },
        {
            "x": ROUND,
            "y": {"field": "accuracy", **accuracy},
            "color": run_colour(told),
            "strokeDash": run_dash(told),
        },
        [tip("run"), tip("round", "d"), tip("accuracy", ".2f")],
    )
    about = "Test accuracy by round, a line for each run: the average over its submodels."
    return Figure("curves", "Accuracy of each run", about, spec, accuracy_records(told))


def extremes(told: Sequence[Told]) -> Figure:
    """The worst, average and best submodel by round."""
    base = {
        "params": [shown(told)],
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
        tips = [tip("measure"), tip("round", "d"), tip("accuracy", ".2f")]
        return Figure("extremes", title, about, lines(base, encoding, tips), accuracy_records(told))
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
                "color": run_colour(told),
                "strokeDash": run_dash(told),
            },
        },
    }
    return Figure("extremes", title, about, spec, accuracy_records(told))


def panels(told: Sequence[Told]) -> Figure:
    """The paper's learning curves: a panel for each run, a line for each submodel."""
    spec: Spec = {
        "params": [shown(told)],
        "transform": [ONLY_SHOWN],
        "facet": {"field": "run", "type": "nominal", "title": None, "sort": run_names(told)},
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
        tips = [tip("run"), tip("submodel"), tip("accuracy", ".2f"), tip(kind, ".3s")]
        spec: Spec = {
            "params": [shown(told)],
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
                "color": run_colour(told),
                "strokeDash": run_dash(told),
                "tooltip": tips,
            },
        }
        about = f"Last test accuracy of each submodel against its {unit}."
        name = f"accuracy-by-{kind.lower()}"
        return Figure(name, f"Accuracy by {kind}", about, spec, cost_records(told))

    return make


def rounds(field: str, name: str, title: str, about: str) -> Callable[[Sequence[Told]], Figure]:
    """Something measured in every round."""

    def make(told: Sequence[Told]) -> Figure:
        spec = lines(
            {"params": [shown(told)], "transform": [ONLY_SHOWN]},
            {
                "x": ROUND,
                "y": {"field": field, "type": "quantitative", "axis": {"title": title}},
                "color": run_colour(told),
                "strokeDash": run_dash(told),
            },
            [tip("run"), tip("round", "d"), tip(field, ".4~g")],
        )
        spec["height"] = 200
        records = round_records(told)
        if field == "failures" and not any(record["failures"] for record in records):
            records = []
        return Figure(name, title[0].upper() + title[1:], about, spec, records)

    return make
