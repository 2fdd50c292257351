"""Members that a search scored, each by what it costs and what it is worth."""

from collections.abc import Sequence
from typing import Any

from nefl.artifacts.searched import read_searched
from nefl.measured import MeasuredBy
from nefl.report.figures.drawn_run import DrawnRun
from nefl.report.figures.vega import Figure, Spec

BEST, TRAINED, CUT = "none is better for its cost", "trained as it is", "cut"


def searched(drawn: Sequence[DrawnRun]) -> Figure:
    """Draw the members that were searched in runs."""
    records = [
        {**each.names, **record}
        for each in drawn
        for record in search_records(read_searched(each.run.path))
    ]
    about = (
        "Every member that a search cut out of the trained family and scored: its MACs, and the "
        "metric on the examples that choose. Those of which no other costs less and scores as "
        "much are joined by a line."
    )
    measured = {str(record["metric"]) for record in records}
    title = measured.pop() if len(measured) == 1 else "score"
    return Figure("searched", "Members that can be cut", about, _picture(title), records)


def search_records(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what is drawn of a search, cheapest first."""
    if not lines:
        return []
    head, *members = lines
    metric = MeasuredBy(str(head.get("metric")), "down" if head.get("better") == "down" else "up")
    found, reached = [], metric.worst_possible
    sign = -1 if metric.better == "up" else 1
    for line in sorted(members, key=lambda line: (line["macs"], sign * line["score"])):
        ahead = metric.is_better(line["score"], reached)
        reached = line["score"] if ahead else reached
        found.append(
            {
                "member": line["member"],
                "MACs": line["macs"],
                "parameters": line["params"],
                "score": line["score"],
                "metric": metric.name,
                "state": BEST if ahead else TRAINED if line["trained"] else CUT,
            }
        )
    return found


def _picture(title: str) -> Spec:
    x: Spec = {
        "field": "MACs",
        "type": "quantitative",
        "scale": {"type": "log"},
        "axis": {"format": "~s", "title": "MACs of a prediction", "tickCount": 5},
    }
    y: Spec = {
        "field": "score",
        "type": "quantitative",
        "scale": {"zero": False},
        "axis": {"title": title},
    }
    tips = [{"field": name, "type": "nominal"} for name in ("run", "member", "state", "metric")]
    tips += [{"field": name, "type": "quantitative"} for name in ("MACs", "parameters", "score")]
    return {
        "layer": [
            {
                "transform": [{"filter": f"datum.state === '{BEST}'"}],
                "mark": {"type": "line"},
                "encoding": {"x": x, "y": y, "detail": {"field": "run", "type": "nominal"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 55},
                "encoding": {
                    "x": x,
                    "y": y,
                    "shape": {"field": "run", "type": "nominal", "legend": None},
                    "color": {
                        "field": "state",
                        "type": "nominal",
                        "sort": [BEST, TRAINED, CUT],
                        "legend": {"title": None, "orient": "bottom"},
                    },
                    "tooltip": tips,
                },
            },
        ]
    }
