"""A metric for people: how its values are written and drawn, which way is good, what axes say."""

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

from nefl.measured import MeasuredBy

Thing = TypeVar("Thing")

ARROWS = {"up": "↑", "down": "↓"}
DIGITS = 4
"""Digits of a value that is no percentage."""


def show_score(metric: MeasuredBy, value: float | None) -> str:
    """Write a value, a percentage without its sign as the paper does; a dash if unknown."""
    if value is None or not math.isfinite(value):
        return "–"
    if metric.percent:
        return f"{100 * value:.2f}"
    return (
        f"{value:.0f}" if 10**DIGITS <= abs(value) < 10**9 else f"{value:#.{DIGITS}g}".rstrip(".")
    )


def show_spread(metric: MeasuredBy, value: float, spread: float) -> str:
    """Write a value with its spread over seeds, both to the same place; alone where it has none."""
    told = show_score(metric, value)
    if not math.isfinite(spread):
        return told
    places = 0 if "e" in told else len(told.partition(".")[2])
    share = 100 * spread if metric.percent else spread
    return f"{told} ± {show_score(metric, spread) if 'e' in told else f'{share:.{places}f}'}"


def drawn_score(metric: MeasuredBy, value: float) -> float | None:
    """Return a value as figures draw it, in percent where people read it so; None if unknown."""
    if not math.isfinite(value):
        return None
    return round(100 * value, 2) if metric.percent else float(f"{value:.6g}")


def show_target(metric: MeasuredBy, target: float) -> str:
    """Write a target, with the sign of percent where it is one."""
    return f"{100 * target:g} %" if metric.percent else f"{target:g}"


def with_arrow(metric: MeasuredBy) -> str:
    """Return the metric's name and an arrow to where it is good."""
    return f"{metric.name} {ARROWS[metric.better]}"


def which_is_better(metric: MeasuredBy) -> str:
    """Say which way is good."""
    return "higher is better" if metric.better == "up" else "lower is better"


def describe_metrics(metrics: Iterable[MeasuredBy]) -> str:
    """Say of each of some metrics in which unit it stands, and which way is good."""
    return "; ".join(
        f"{metric.name}{' in percent' if metric.percent else ''}, {which_is_better(metric)}"
        for metric in dict.fromkeys(metrics)
    )


def score_axis(metric: MeasuredBy) -> str:
    """Return the title of an axis of values."""
    return f"test {metric.name}, %" if metric.percent else f"test {metric.name}"


def tip_format(metric: MeasuredBy) -> str:
    """Return how a value is written under the pointer, as d3 formats have it."""
    return ".2f" if metric.percent else f".{DIGITS}~g"


def best_first(metric: MeasuredBy, values: Sequence[tuple[float, Thing]]) -> list[Thing]:
    """Return what values belong to, those with the best first and those without one last."""
    sign = -1 if metric.better == "up" else 1
    ranked = sorted(values, key=lambda pair: _last_if_unknown(sign * pair[0]))
    return [thing for _, thing in ranked]


def _last_if_unknown(value: float) -> float:
    return value if math.isfinite(value) else math.inf
