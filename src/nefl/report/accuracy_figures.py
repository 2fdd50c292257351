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
    ACCURACY,
    NUMBER,
    PANEL,
    ROUND,
    SUBMODEL,
    about_seeds,
    counted_points,
    curves_of,
    line_colour,
    line_dash,
    lines_of,
    over_seeds,
    panels_of,
    switches,
    tip,
    tips,
    whole,
)
from nefl.report.vega import Figure, Spec


def _one_view(inner: Spec, height: int = 300) -> Spec:
    return {**inner, "width": "container", "height": height}


def curves(told: Sequence[Told]) -> Figure:
    """Accuracy by round: of each submodel for one line, of a chosen measure for several."""
    said = tips(told, tip("round", "d"), tip("accuracy", ".2f"))
    if len(lines_of(told)) == 1:
        inner = curves_of(told, ACCURACY, {"x": ROUND, "color": SUBMODEL}, [tip("submodel"), *said])
        spec: Spec = {
            "params": switches(told),
            "transform": [
                *over_seeds("accuracy", "round", "submodel"),
                counted_points("submodel"),
            ],
            **_one_view(inner),
        }
        about = "Test accuracy of each submodel by round; 1 is the smallest." + about_seeds(told)
        return Figure("curves", "Accuracy of each submodel", about, spec, submodel_records(told))
    spec = {
        "params": [*switches(told), {"name": "measure", "value": "average"}],
        "transform": [
            {"calculate": "datum[measure]", "as": "accuracy"},
            *over_seeds("accuracy", "round"),
            counted_points(),
        ],
        **_one_view(
            curves_of(told, ACCURACY, {"x": ROUND, "color": line_colour(told)}, said, dashed=True)
        ),
    }
    about = "Test accuracy by round: the average over submodels." + about_seeds(told)
    return Figure("curves", "Accuracy compared", about, spec, accuracy_records(told))


def extremes(told: Sequence[Told]) -> Figure:
    """The worst, average and best submodel by round."""
    names = ["worst", "average", "best"]
    base: Spec = {
        "params": switches(told),
        "transform": [
            {"fold": names, "as": ["measure", "accuracy"]},
            *over_seeds("accuracy", "round", "measure"),
            counted_points("measure"),
        ],
    }
    measure = {"field": "measure", "type": "nominal", "sort": names}
    said = tips(told, tip("measure"), tip("round", "d"), tip("accuracy", ".2f"))
    about = "Worst (the smallest submodel), average over all submodels, and best, by round."
    if len(lines_of(told)) == 1:
        colour = measure | {
            "scale": {"domain": names},
            "legend": {"title": None, "symbolOpacity": 1},
        }
        spec = {**base, **_one_view(curves_of(told, ACCURACY, {"x": ROUND, "color": colour}, said))}
    else:
        inner = curves_of(
            told, ACCURACY, {"x": ROUND, "color": line_colour(told)}, said, dashed=True
        )
        facet = {"column": measure | {"title": None}}
        spec = {**base, "facet": facet, "spec": {**inner, "width": PANEL, "height": 220}}
    about += about_seeds(told)
    return Figure("extremes", "Worst, average, best", about, spec, accuracy_records(told))


def panels(told: Sequence[Told]) -> Figure:
    """The paper's learning curves: a panel for each line, in it a curve for each submodel."""
    said = tips(told, tip("submodel"), tip("round", "d"), tip("accuracy", ".2f"))
    inner = curves_of(told, ACCURACY, {"x": ROUND, "color": SUBMODEL}, said)
    spec: Spec = {
        "params": switches(told),
        "transform": [*over_seeds("accuracy", "round", "submodel"), counted_points("submodel")],
        **panels_of(told, {**inner, "height": 190}),
    }
    about = "Test accuracy of each submodel by round, 1 the smallest." + about_seeds(told)
    return Figure("learning-curves", "Learning curves", about, spec, submodel_records(told))


def cost(kind: str, title: str, unit: str) -> Callable[[Sequence[Told]], Figure]:
    """Accuracy against one kind of cost."""

    def make(told: Sequence[Told]) -> Figure:
        said = tips(told, tip("submodel"), tip("accuracy", ".2f"), tip(kind, ".3s"))
        bar: Spec = {
            "mark": {"type": "rule", "strokeWidth": 1.5},
            "encoding": {"y": ACCURACY | {"field": "low"}, "y2": {"field": "high"}},
        }
        line: Spec = {
            "mark": {"type": "line", "point": {"size": 60, "filled": True}},
            "encoding": {
                "y": ACCURACY,
                "order": {"field": kind, "type": "quantitative"},
                "strokeDash": line_dash(told),
                "tooltip": said,
            },
        }
        spec: Spec = {
            "params": switches(told),
            "transform": over_seeds("accuracy", "submodel", kind),
            "width": "container",
            "height": 240,
            "encoding": {
                "x": {
                    "field": kind,
                    "type": "quantitative",
                    "scale": {"type": "log", "nice": False, "padding": 16},
                    "axis": {"title": title, "format": ".2s", "tickCount": 5, "labelOverlap": True},
                },
                "color": line_colour(told),
                "detail": {"field": "drawn", "type": "nominal"},
            },
            "layer": [bar, line],
        }
        about = f"Last test accuracy of each submodel against its {unit}." + about_seeds(
            told, " Points and bars are the mean over seeds and a standard deviation."
        )
        name = f"accuracy-by-{kind.lower()}"
        return Figure(name, f"Accuracy by {kind}", about, spec, cost_records(told))

    return make


def rounds(field: str, name: str, title: str, about: str) -> Callable[[Sequence[Told]], Figure]:
    """Something measured in every round."""

    def make(told: Sequence[Told]) -> Figure:
        axis = {"title": title, "format": NUMBER}
        if field == "failures":
            axis = whole("y", title, 5)
        by_round = {"x": ROUND, "color": line_colour(told)}
        # Zero says nothing of a loss; seconds, bytes and failures are seen against it.
        y: Spec = {
            "field": field,
            "type": "quantitative",
            "scale": {"zero": field != "loss"},
            "axis": axis,
        }
        said = tips(told, tip("round", "d"), tip(field, ".4~g"))
        inner = curves_of(told, y, by_round, said, dashed=True)
        spec: Spec = {
            "params": switches(told),
            "transform": [*over_seeds(field, "round"), counted_points()],
            **_one_view(inner, 200),
        }
        records = round_records(told)
        if field == "failures" and not any(record["failures"] for record in records):
            records = []
        heading = title[0].upper() + title[1:]
        return Figure(name, heading, about + about_seeds(told), spec, records)

    return make
