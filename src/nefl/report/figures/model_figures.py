"""Figures of the trained model: step sizes, norms, and how often its elements were trained."""

from collections.abc import Mapping, Sequence
from typing import Any

from nefl.report.figures import parts
from nefl.report.figures.drawn_run import DrawnRun
from nefl.report.figures.parts import SUBMODEL, tip
from nefl.report.figures.run_records import coverage_records, norm_records, step_records
from nefl.report.figures.vega import FILE_WIDTH, Figure, Spec

LETTER = 6.5
"""Pixels of a letter of an axis' label, about."""
COVERAGE_WIDTH = 840
"""Pixels for all panels of coverage in a row: they share one list of tensors."""
MANY_TENSORS = 90


def _by_place(drawn: Sequence[DrawnRun], place: str, value: str, records: list[Any]) -> Spec:
    """A number of each submodel along the model, a panel for each line."""
    present = parts.those_in(drawn, records)
    places = _in_order(records, place)
    room = (FILE_WIDTH if len(parts.lines_of(present)) == 1 else parts.PANEL) / max(1, len(places))
    level = max(map(len, places), default=0) * LETTER < room
    y: Spec = {"field": value, "type": "quantitative", "scale": {"zero": False}, "title": value}
    said = parts.tips(drawn, tip("submodel"), tip(place), tip(value, ".4~g"))
    inner: Spec = {
        "encoding": {
            "x": {
                "field": place,
                "type": "nominal",
                "sort": places,
                "axis": {
                    "title": place,
                    "labelAngle": 0 if level else -60,
                    "labelOverlap": True,
                },
            },
            "color": SUBMODEL,
            # Bars of one place stand side by side, where there is room for it.
            **({"xOffset": {"field": "submodel"}} if level and parts.has_seeds(present) else {}),
            "detail": {"field": "drawn", "type": "nominal"},
        },
        "layer": [
            parts.deviation_bar("y", y),
            {
                "mark": {"type": "line", "point": {"size": 40, "filled": True}},
                "encoding": {"y": y, "tooltip": said},
            },
        ],
    }
    base = parts.switched(drawn, *parts.over_seeds(value, place, "submodel"))
    return base | parts.wide_or_panels(present, inner, 220)


def _in_order(records: Sequence[Mapping[str, Any]], place: str) -> list[str]:
    """Return places in the order of the largest submodel, which has most of them."""
    by_size = sorted(records, key=lambda record: -int(record["submodel"]))
    return list(dict.fromkeys(str(record[place]) for record in by_size))


def steps(drawn: Sequence[DrawnRun]) -> Figure:
    """Step sizes by block and submodel."""
    records = step_records(drawn)
    about = "Step size of each residual block of each submodel at the newest checkpoint."
    spec = _by_place(drawn, "block", "step size", records)
    return Figure(
        "step-sizes", "Step sizes", about + parts.about_seeds(drawn, parts.BARS), spec, records
    )


def norms(drawn: Sequence[DrawnRun]) -> Figure:
    """Average L1 norm by layer and submodel."""
    records = norm_records(drawn)
    about = "Mean absolute weight of each layer of each submodel at the newest checkpoint."
    spec = _by_place(drawn, "layer", "L1 norm", records)
    about += parts.about_seeds(drawn, parts.BARS)
    return Figure("l1-norms", "Average L1 norm of weights", about, spec, records)


def coverage(drawn: Sequence[DrawnRun]) -> Figure:
    """How often the elements of each tensor were trained: panels side by side, one list of tensors.

    Lines in one panel would lie upon each other, since most of them train a tensor alike.
    """
    records = coverage_records(drawn)
    tensors = list(dict.fromkeys(record["tensor"] for record in records))
    lines = max(1, len(parts.lines_of(drawn)))
    width = max(120, min(FILE_WIDTH, COVERAGE_WIDTH // lines))
    x: Spec = {
        "type": "quantitative",
        "axis": parts.whole("x", "updates of an element", most=max(2, width // 50)),
    }
    said = parts.tips(drawn, tip("tensor"), tip("mean", ".1f"), tip("least", ".3~g"))
    bar: Spec = {
        "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.5},
        "encoding": {"x": {"field": "least", **x}, "x2": {"field": "mean"}, "tooltip": said},
    }
    dot: Spec = {
        "mark": {"type": "point", "filled": True, "size": 45, "opacity": 1},
        "encoding": {"x": {"field": "mean", **x}, "tooltip": said},
    }
    height = {"step": 14 if len(tensors) <= MANY_TENSORS else 7}
    inner: Spec = {
        "encoding": {
            "y": {
                "field": "tensor",
                "type": "nominal",
                "sort": tensors,
                "axis": {"title": None, "labelOverlap": True, "grid": True, "labelLimit": 220},
            },
        },
        "layer": [bar, dot],
    }
    base = parts.switched(drawn, *parts.over_seeds("mean", "tensor", also=["least"]))
    if lines == 1:
        fit = {"autosize": {"type": "fit-x", "contains": "padding"}}
        spec = base | parts.wide(inner, height) | fit
    else:
        columns = max(1, COVERAGE_WIDTH // width)
        view = {**inner, "height": height}
        spec = base | parts.panels_of(drawn, view, columns=columns, width=width)
    about = (
        "How many updates the elements of each shared tensor were averaged from over the run: the "
        "dot is the mean, the bar reaches to the element that was trained least."
    )
    about += parts.about_seeds(drawn, " Both are means over seeds.")
    return Figure("coverage", "Coverage by tensor", about, spec, records)
