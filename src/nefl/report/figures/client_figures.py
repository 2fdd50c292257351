"""Figures of the clients: their labels, their tiers, their simulated time."""

import json
from collections.abc import Sequence

from nefl.report.figures import parts
from nefl.report.figures.client_records import (
    ALTERNATIVES,
    MAX_CLIENTS_DRAWN,
    Labels,
    discard_records,
    labels_of,
    simulated_records,
    tier_records,
    timed_records,
)
from nefl.report.figures.drawn_run import DrawnRun, metric_of
from nefl.report.figures.parts import ROUND, tip
from nefl.report.figures.run_records import SCORE
from nefl.report.figures.vega import Figure, Spec
from nefl.report.reading.scores import score_axis, tip_format

LABELS_HEIGHT = 220


def labels(drawn: Sequence[DrawnRun]) -> Figure:
    """Examples of each class at each client."""
    found = labels_of(drawn)
    records = [record for each in found for record in each.records]
    inner: Spec = {
        "mark": {"type": "rect", "tooltip": True},
        "encoding": {
            "x": {
                "field": "client",
                "type": "ordinal",
                "axis": {"labelOverlap": True, "labelAngle": 0},
            },
            "y": {"field": "class", "type": "nominal", "sort": None, "axis": {"title": "class"}},
            "color": {
                "field": "examples",
                "type": "quantitative",
                "scale": {"zero": True},
                "legend": {"format": "d", "tickMinStep": 2},
            },
        },
    }
    base = parts.switched(drawn, _any_shown(found))
    if len(found) <= 1:
        spec = base | parts.wide(inner, LABELS_HEIGHT)
    else:
        facet: Spec = {
            "field": "run",
            "type": "nominal",
            "title": None,
            "sort": [each.runs[0] for each in found],
        }
        panel = {**inner, "width": parts.PANEL * 3 // 2, "height": LABELS_HEIGHT}
        spec = {**base, "facet": facet, "columns": 2, "spec": panel}
    about = "Examples of each class at each client, once for each different partition."
    title = "Label distribution over clients"
    return Figure("labels", title, about, spec, records, _shared(found))


def _any_shown(found: Sequence[Labels]) -> Spec:
    """Keep a partition as long as one of its runs is shown."""
    tests = [
        f"(datum.run == {json.dumps(each.runs[0])} && "
        f"({' || '.join(f'indexof(shown, {json.dumps(run)}) >= 0' for run in each.runs)}))"
        for each in found
    ]
    return {"filter": " || ".join(tests) or "true"}


def _shared(found: Sequence[Labels]) -> tuple[str, ...]:
    """Say which runs are drawn with another, and which clients are not drawn."""
    notes = []
    for each in found:
        first, *others = each.runs
        if others:
            notes.append(f"{', '.join(others)}: the partition of {first}, drawn once")
        if len(each.counts) > MAX_CLIENTS_DRAWN:
            notes.append(f"{first}: the first {MAX_CLIENTS_DRAWN} of {len(each.counts)} clients")
    return tuple(notes)


def tiers(drawn: Sequence[DrawnRun]) -> Figure:
    """Which submodels clients of each tier trained how often."""
    records = tier_records(drawn)
    cells: Spec = {
        "height": {"step": 26},
        "encoding": {
            "x": {"field": "submodel", "type": "ordinal", "axis": {"labelAngle": 0}},
            "y": {"field": "tier", "type": "nominal", "sort": None, "axis": {"title": None}},
        },
        "layer": [
            {
                "mark": {"type": "rect", "opacity": 0.55},
                "encoding": {
                    "color": {"field": "share", "type": "quantitative", "legend": None},
                    "tooltip": parts.tips(
                        drawn, tip("tier"), tip("submodel"), tip("updates", ".1~f")
                    ),
                },
            },
            {
                "mark": {"type": "text", "fontSize": 11},
                "encoding": {
                    "text": {"field": "updates", "type": "quantitative", "format": ".1~f"}
                },
            },
        ],
    }
    # A panel's cells are set against each other: methods have other numbers of submodels.
    most = {"op": "max", "field": "updates", "as": "most"}
    shares: list[Spec] = [
        {"joinaggregate": [most], "groupby": ["drawn"]},
        {"calculate": "datum.updates / max(1, datum.most)", "as": "share"},
    ]
    spec = parts.switched(drawn, *parts.over_seeds("updates", "tier", "submodel"), *shares)
    spec |= parts.panels_of(drawn, cells, width=210)
    about = "How many updates of each submodel came from clients of each tier or kind of device."
    about += parts.about_seeds(drawn, " Means over seeds.")
    return Figure("tiers", "Who trained which submodel", about, spec, records)


def discards(drawn: Sequence[DrawnRun]) -> Figure:
    """What became of the clients of each tier that were asked."""
    records = discard_records(drawn)
    ways = ["counted", "discarded", "failed"]
    y: Spec = {"field": "tier", "type": "nominal", "axis": {"title": None}}
    bars: Spec = {
        "mark": {"type": "bar"},
        "height": {"step": 22},
        "encoding": {
            "y": y,
            "x": {"field": "clients", "type": "quantitative", "axis": parts.whole("x", "asked")},
            "color": {
                "field": "became",
                "type": "nominal",
                "scale": {"domain": ways},
                "legend": {"title": None, "orient": "bottom"},
            },
            "tooltip": parts.tips(drawn, tip("tier"), tip("became"), tip("clients", ".1~f")),
        },
    }
    spec = parts.switched(drawn, *parts.over_seeds("clients", "tier", "became"))
    spec |= parts.panels_of(drawn, bars)
    about = (
        "How many of the clients that were asked counted, failed, or were discarded because the "
        "round had closed, by tier or kind of device, over all rounds."
    )
    about += parts.about_seeds(drawn, " Means over seeds.")
    return Figure("discards", "Who was discarded", about, spec, records)


def by_time(drawn: Sequence[DrawnRun]) -> Figure:
    """The average of the primary metric against simulated time."""
    records, metric = timed_records(drawn), metric_of(drawn)
    short = max((record["hours"] for record in records), default=0) < 1
    unit, in_hour = ("minutes", 60) if short else ("hours", 1)
    axis = {"title": f"simulated {unit}", "format": parts.NUMBER}
    x: Spec = {"field": unit, "type": "quantitative", "axis": axis}
    score = tip(SCORE, tip_format(metric), metric.name)
    said = parts.tips(drawn, tip("round", "d"), tip(unit, ".3~g"), score)
    y = parts.score_channel(score_axis(metric))
    colours = {"x": x, "color": parts.line_colour(drawn)}
    inner = parts.curves_of(drawn, y, colours, said, dashed=True)
    spec = parts.switched(
        drawn,
        {"calculate": f"datum.hours * {in_hour}", "as": unit},
        *parts.over_seeds(SCORE, "round", also=[unit]),
        parts.counted_points(),
    ) | parts.wide(inner, 240)
    about = f"The test {metric.name}, averaged over submodels, by simulated time."
    return Figure(
        "by-time", "What simulated time buys", about + parts.about_seeds(drawn), spec, records
    )


def simulated(drawn: Sequence[DrawnRun]) -> Figure:
    """Simulated time, and what waiting for stragglers would cost."""
    records = simulated_records(drawn)
    short = max((record["hours"] for record in records), default=0) < 1
    unit, in_hour = ("minutes", 60) if short else ("hours", 1)
    axis = {"title": f"simulated {unit}", "format": parts.NUMBER}
    y: Spec = {"field": unit, "type": "quantitative", "axis": axis}
    ways = list(ALTERNATIVES.values())
    colour: Spec = {
        "field": "way",
        "type": "nominal",
        "scale": {"domain": ways},
        "legend": {"title": None, "orient": "bottom", "symbolType": "stroke", "symbolOpacity": 1},
    }
    said = parts.tips(drawn, tip("way"), tip("round", "d"), tip(unit, ".3~g"))
    inner = parts.curves_of(drawn, y, {"x": ROUND, "color": colour}, said)
    spec = parts.switched(
        drawn,
        {"calculate": f"datum.hours * {in_hour}", "as": unit},
        *parts.over_seeds(unit, "round", "way"),
        parts.counted_points("way"),
    ) | parts.wide_or_panels(parts.those_in(drawn, records), inner, 240)
    about = (
        "Simulated time up to each round: with nested submodels, if everyone trained the full "
        "model (the price of waiting for stragglers), and with only the clients that fit it."
    )
    return Figure(
        "simulated-time", "Simulated time", about + parts.about_seeds(drawn), spec, records
    )
