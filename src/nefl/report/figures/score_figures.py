"""Figures of the primary metric, by round and by cost, and of what each round took."""

from collections.abc import Callable, Sequence

from nefl.report.figures import parts
from nefl.report.figures.drawn_run import DrawnRun, measured_alike, metric_of
from nefl.report.figures.parts import ROUND, SUBMODEL, tip
from nefl.report.figures.run_records import (
    SCORE,
    cost_records,
    evaluation_records,
    round_records,
    submodel_records,
)
from nefl.report.figures.vega import Figure, Spec
from nefl.report.reading.scores import score_axis, tip_format, which_is_better


def score_y(drawn: Sequence[DrawnRun]) -> Spec:
    """The axis of the primary metric."""
    return parts.score_channel(score_axis(metric_of(drawn)))


def _said(drawn: Sequence[DrawnRun], *own: Spec) -> list[Spec]:
    metric = metric_of(drawn)
    return parts.tips(drawn, *own, tip(SCORE, tip_format(metric), metric.name))


def _better(drawn: Sequence[DrawnRun]) -> str:
    text = which_is_better(metric_of(drawn))
    return f" {text[0].upper()}{text[1:]}."


def curves(drawn: Sequence[DrawnRun]) -> Figure:
    """The metric by round: of each submodel for one line, of a chosen measure for several."""
    name, y = f"test {metric_of(drawn).name}", score_y(drawn)
    if len(parts.lines_of(drawn)) == 1:
        said = [tip("submodel"), *_said(drawn, tip("round", "d"))]
        inner = parts.curves_of(drawn, y, {"x": ROUND, "color": SUBMODEL}, said)
        spec = parts.switched(
            drawn, *parts.over_seeds(SCORE, "round", "submodel"), parts.counted_points("submodel")
        ) | parts.wide(inner, 300)
        about = f"The {name} of each submodel by round; 1 is the smallest."
        title, records = f"The {name} of each submodel", submodel_records(drawn)
    else:
        colour = parts.line_colour(drawn, measured_alike(drawn))
        said = _said(drawn, tip("round", "d"))
        inner = parts.curves_of(drawn, y, {"x": ROUND, "color": colour}, said, dashed=True)
        spec = parts.switched(
            drawn,
            {"calculate": "datum[measure]", "as": SCORE},
            *parts.over_seeds(SCORE, "round"),
            parts.counted_points(),
        ) | parts.wide(inner, 300)
        spec["params"].append({"name": "measure", "value": "average"})
        about = f"The {name} by round: the average over submodels."
        title, records = f"The {name} compared", evaluation_records(drawn)
    about += _better(drawn) + parts.about_seeds(drawn)
    return Figure("curves", title, about, spec, records)


def extremes(drawn: Sequence[DrawnRun]) -> Figure:
    """The worst, average and best submodel by round."""
    names = ["worst", "average", "best"]
    base = parts.switched(
        drawn,
        {"fold": names, "as": ["measure", SCORE]},
        *parts.over_seeds(SCORE, "round", "measure"),
        parts.counted_points("measure"),
    )
    measure = {"field": "measure", "type": "nominal", "sort": names}
    said, y = _said(drawn, tip("measure"), tip("round", "d")), score_y(drawn)
    if len(parts.lines_of(drawn)) == 1:
        colour = measure | {
            "scale": {"domain": names},
            "legend": {"title": None, "symbolOpacity": 1},
        }
        inner = parts.curves_of(drawn, y, {"x": ROUND, "color": colour}, said)
        spec = base | parts.wide(inner, 300)
    else:
        by_line = {"x": ROUND, "color": parts.line_colour(drawn, measured_alike(drawn))}
        inner = parts.curves_of(drawn, y, by_line, said, dashed=True)
        facet = {"column": measure | {"title": None}}
        spec = {**base, "facet": facet, "spec": {**inner, "width": parts.PANEL, "height": 220}}
    about = (
        f"The test {metric_of(drawn).name} of the worst (the smallest) submodel, the average over "
        "all submodels, and the best, by round."
    )
    about += _better(drawn) + parts.about_seeds(drawn)
    return Figure("extremes", "Worst, average, best", about, spec, evaluation_records(drawn))


def panels(drawn: Sequence[DrawnRun]) -> Figure:
    """The paper's learning curves: a panel for each line, in it a curve for each submodel."""
    said = _said(drawn, tip("submodel"), tip("round", "d"))
    inner = parts.curves_of(drawn, score_y(drawn), {"x": ROUND, "color": SUBMODEL}, said)
    spec = parts.switched(
        drawn, *parts.over_seeds(SCORE, "round", "submodel"), parts.counted_points("submodel")
    ) | parts.panels_of(drawn, {**inner, "height": 190})
    about = f"The test {metric_of(drawn).name} of each submodel by round, 1 the smallest."
    about += _better(drawn) + parts.about_seeds(drawn)
    return Figure("learning-curves", "Learning curves", about, spec, submodel_records(drawn))


def cost(kind: str, title: str, unit: str) -> Callable[[Sequence[DrawnRun]], Figure]:
    """The metric against one kind of cost."""

    def make(drawn: Sequence[DrawnRun]) -> Figure:
        name, y = f"test {metric_of(drawn).name}", score_y(drawn)
        line: Spec = {
            "mark": {"type": "line", "point": {"size": 60, "filled": True}},
            "encoding": {
                "y": y,
                "order": {"field": kind, "type": "quantitative"},
                "strokeDash": parts.line_dash(drawn),
                "tooltip": _said(drawn, tip("submodel"), tip(kind, ".3s")),
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
                "color": parts.line_colour(drawn, measured_alike(drawn), narrow=True),
                "detail": {"field": "drawn", "type": "nominal"},
            },
            "layer": [parts.deviation_bar("y", y), line],
        }
        spec = parts.switched(drawn, *parts.over_seeds(SCORE, "submodel", kind))
        about = f"The last {name} of each submodel against its {unit}." + _better(drawn)
        about += parts.about_seeds(drawn, parts.BARS)
        return Figure(
            f"by-{kind.lower()}",
            f"The {name} by {kind}",
            about,
            spec | parts.wide(inner, 240),
            cost_records(drawn),
        )

    return make


def rounds(field: str, name: str, title: str, about: str) -> Callable[[Sequence[DrawnRun]], Figure]:
    """Something measured in every round."""

    def make(drawn: Sequence[DrawnRun]) -> Figure:
        axis = {"title": title, "format": parts.NUMBER}
        if field == "failures":
            axis = parts.whole("y", title, 5)
        by_round = {"x": ROUND, "color": parts.line_colour(drawn)}
        # Zero says nothing of a loss; seconds, bytes and failures are seen against it.
        y: Spec = {
            "field": field,
            "type": "quantitative",
            "scale": {"zero": field != "loss"},
            "axis": axis,
        }
        said = parts.tips(drawn, tip("round", "d"), tip(field, ".4~g"))
        inner = parts.curves_of(drawn, y, by_round, said, dashed=True)
        spec = parts.switched(drawn, *parts.over_seeds(field, "round"), parts.counted_points())
        records = round_records(drawn)
        if field == "failures" and not any(record["failures"] for record in records):
            records = []
        heading = title[0].upper() + title[1:]
        about_all = about + parts.about_seeds(drawn)
        return Figure(name, heading, about_all, spec | parts.wide(inner, 200), records)

    return make
