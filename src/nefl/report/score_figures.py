"""Figures of the primary metric, by round and by cost, and of what each round took."""

from collections.abc import Callable, Sequence

from nefl.report import figure_parts as parts
from nefl.report.datasets import (
    SCORE,
    Told,
    cost_records,
    evaluation_records,
    measured_alike,
    metric_of,
    round_records,
    submodel_records,
)
from nefl.report.figure_parts import ROUND, SUBMODEL, tip
from nefl.report.scores import score_axis, tip_format, which_is_better
from nefl.report.vega import Figure, Spec


def score_y(told: Sequence[Told]) -> Spec:
    """The axis of the primary metric."""
    return parts.score_channel(score_axis(metric_of(told)))


def _said(told: Sequence[Told], *own: Spec) -> list[Spec]:
    metric = metric_of(told)
    return parts.tips(told, *own, tip(SCORE, tip_format(metric), metric.name))


def _better(told: Sequence[Told]) -> str:
    text = which_is_better(metric_of(told))
    return f" {text[0].upper()}{text[1:]}."


def curves(told: Sequence[Told]) -> Figure:
    """The metric by round: of each submodel for one line, of a chosen measure for several."""
    name, y = f"test {metric_of(told).name}", score_y(told)
    if len(parts.lines_of(told)) == 1:
        said = [tip("submodel"), *_said(told, tip("round", "d"))]
        inner = parts.curves_of(told, y, {"x": ROUND, "color": SUBMODEL}, said)
        spec = parts.switched(
            told, *parts.over_seeds(SCORE, "round", "submodel"), parts.counted_points("submodel")
        ) | parts.wide(inner, 300)
        about = f"The {name} of each submodel by round; 1 is the smallest."
        title, records = f"The {name} of each submodel", submodel_records(told)
    else:
        colour = parts.line_colour(told, measured_alike(told))
        said = _said(told, tip("round", "d"))
        inner = parts.curves_of(told, y, {"x": ROUND, "color": colour}, said, dashed=True)
        spec = parts.switched(
            told,
            {"calculate": "datum[measure]", "as": SCORE},
            *parts.over_seeds(SCORE, "round"),
            parts.counted_points(),
        ) | parts.wide(inner, 300)
        spec["params"].append({"name": "measure", "value": "average"})
        about = f"The {name} by round: the average over submodels."
        title, records = f"The {name} compared", evaluation_records(told)
    about += _better(told) + parts.about_seeds(told)
    return Figure("curves", title, about, spec, records)


def extremes(told: Sequence[Told]) -> Figure:
    """The worst, average and best submodel by round."""
    names = ["worst", "average", "best"]
    base = parts.switched(
        told,
        {"fold": names, "as": ["measure", SCORE]},
        *parts.over_seeds(SCORE, "round", "measure"),
        parts.counted_points("measure"),
    )
    measure = {"field": "measure", "type": "nominal", "sort": names}
    said, y = _said(told, tip("measure"), tip("round", "d")), score_y(told)
    if len(parts.lines_of(told)) == 1:
        colour = measure | {
            "scale": {"domain": names},
            "legend": {"title": None, "symbolOpacity": 1},
        }
        inner = parts.curves_of(told, y, {"x": ROUND, "color": colour}, said)
        spec = base | parts.wide(inner, 300)
    else:
        by_line = {"x": ROUND, "color": parts.line_colour(told, measured_alike(told))}
        inner = parts.curves_of(told, y, by_line, said, dashed=True)
        facet = {"column": measure | {"title": None}}
        spec = {**base, "facet": facet, "spec": {**inner, "width": parts.PANEL, "height": 220}}
    about = (
        f"The test {metric_of(told).name} of the worst (the smallest) submodel, the average over "
        "all submodels, and the best, by round."
    )
    about += _better(told) + parts.about_seeds(told)
    return Figure("extremes", "Worst, average, best", about, spec, evaluation_records(told))


def panels(told: Sequence[Told]) -> Figure:
    """The paper's learning curves: a panel for each line, in it a curve for each submodel."""
    said = _said(told, tip("submodel"), tip("round", "d"))
    inner = parts.curves_of(told, score_y(told), {"x": ROUND, "color": SUBMODEL}, said)
    spec = parts.switched(
        told, *parts.over_seeds(SCORE, "round", "submodel"), parts.counted_points("submodel")
    ) | parts.panels_of(told, {**inner, "height": 190})
    about = f"The test {metric_of(told).name} of each submodel by round, 1 the smallest."
    about += _better(told) + parts.about_seeds(told)
    return Figure("learning-curves", "Learning curves", about, spec, submodel_records(told))


def cost(kind: str, title: str, unit: str) -> Callable[[Sequence[Told]], Figure]:
    """The metric against one kind of cost."""

    def make(told: Sequence[Told]) -> Figure:
        name, y = f"test {metric_of(told).name}", score_y(told)
        line: Spec = {
            "mark": {"type": "line", "point": {"size": 60, "filled": True}},
            "encoding": {
                "y": y,
                "order": {"field": kind, "type": "quantitative"},
                "strokeDash": parts.line_dash(told),
                "tooltip": _said(told, tip("submodel"), tip(kind, ".3s")),
            },
        }
        inner: Spec = {
            "encoding": {
                "x": {
                    "field": kind,
                    "type": "quantitative",
                    "scale": {"type": "log", "nice": False, "padding": 16},
                    "axis": {"title": title, "format": ".2s", "tickCount": 5, "labelOverlap": True},
                },
                "color": parts.line_colour(told, measured_alike(told)),
                "detail": {"field": "drawn", "type": "nominal"},
            },
            "layer": [parts.deviation_bar("y", y), line],
        }
        spec = parts.switched(told, *parts.over_seeds(SCORE, "submodel", kind))
        about = f"The last {name} of each submodel against its {unit}." + _better(told)
        about += parts.about_seeds(told, parts.BARS)
        return Figure(
            f"by-{kind.lower()}",
            f"The {name} by {kind}",
            about,
            spec | parts.wide(inner, 240),
            cost_records(told),
        )

    return make


def rounds(field: str, name: str, title: str, about: str) -> Callable[[Sequence[Told]], Figure]:
    """Something measured in every round."""

    def make(told: Sequence[Told]) -> Figure:
        axis = {"title": title, "format": parts.NUMBER}
        if field == "failures":
            axis = parts.whole("y", title, 5)
        by_round = {"x": ROUND, "color": parts.line_colour(told)}
        # Zero says nothing of a loss; seconds, bytes and failures are seen against it.
        y: Spec = {
            "field": field,
            "type": "quantitative",
            "scale": {"zero": field != "loss"},
            "axis": axis,
        }
        said = parts.tips(told, tip("round", "d"), tip(field, ".4~g"))
        inner = parts.curves_of(told, y, by_round, said, dashed=True)
        spec = parts.switched(told, *parts.over_seeds(field, "round"), parts.counted_points())
        records = round_records(told)
        if field == "failures" and not any(record["failures"] for record in records):
            records = []
        heading = title[0].upper() + title[1:]
        about_all = about + parts.about_seeds(told)
        return Figure(name, heading, about_all, spec | parts.wide(inner, 200), records)

    return make
