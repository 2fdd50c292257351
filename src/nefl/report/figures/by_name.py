"""The figures of runs, by name."""

from collections.abc import Callable, Mapping, Sequence

from nefl.report.figures.client_figures import by_time, discards, labels, simulated, tiers
from nefl.report.figures.drawn_run import DrawnRun
from nefl.report.figures.model_figures import coverage, norms, steps
from nefl.report.figures.score_figures import cost, curves, extremes, panels, rounds
from nefl.report.figures.search_figures import searched
from nefl.report.figures.vega import Figure

BY_COST = ("by-macs", "by-parameters", "by-bytes")
"""Figures of the primary metric against a cost, which share their data."""

FIGURES: Mapping[str, Callable[[Sequence[DrawnRun]], Figure]] = {
    "curves": curves,
    "extremes": extremes,
    "learning-curves": panels,
    "by-macs": cost("MACs", "MACs of a forward pass", "multiply-accumulates"),
    "by-parameters": cost("parameters", "parameters", "number of parameters"),
    "by-bytes": cost("bytes", "bytes sent each way", "bytes to send it"),
    "step-sizes": steps,
    "l1-norms": norms,
    "coverage": coverage,
    "searched": searched,
    "labels": labels,
    "tiers": tiers,
    "discards": discards,
    "simulated-time": simulated,
    "by-time": by_time,
    "loss": rounds("loss", "loss", "training loss", "Mean training loss of each round's clients."),
    "failures": rounds("failures", "failures", "failures", "Failed and refused updates by round."),
    "seconds": rounds("seconds", "seconds", "seconds a round", "Wall time of each round."),
    "traffic": rounds(
        "MiB", "traffic", "MiB sent a round", "Bytes sent to clients and back, by round."
    ),
}


def by_name(drawn: Sequence[DrawnRun]) -> dict[str, Figure]:
    """Return all figures that the runs have data for."""
    figures = (make(drawn) for make in FIGURES.values())
    return {figure.name: figure for figure in figures if figure.records}
