"""A metric for people: its unit, its direction, and as many digits as it needs."""

import math

import pytest

from nefl.measured import MeasuredBy
from nefl.report.reading.scores import (
    best_first,
    describe_metrics,
    drawn_score,
    score_axis,
    show_score,
    show_spread,
    show_target,
    with_arrow,
)

ACCURACY, PERPLEXITY = MeasuredBy("accuracy", "up", percent=True), MeasuredBy("perplexity", "down")


@pytest.mark.parametrize(
    ("metric", "value", "told"),
    [
        (ACCURACY, 0.60504, "60.50"),
        (PERPLEXITY, 23.4567, "23.46"),
        (PERPLEXITY, 0.012345, "0.01235"),
        (PERPLEXITY, 1234.4, "1234"),
        (PERPLEXITY, 16012.5, "16012"),
        (PERPLEXITY, 1.5e12, "1.500e+12"),
        (PERPLEXITY, math.inf, "–"),
        (ACCURACY, None, "–"),
    ],
)
def test_values_are_written_in_their_unit(
    metric: MeasuredBy, value: float | None, told: str
) -> None:
    assert show_score(metric, value) == told


def test_a_spread_has_the_places_of_its_mean() -> None:
    assert show_spread(ACCURACY, 0.605, 0.00707) == "60.50 ± 0.71"
    assert show_spread(PERPLEXITY, 23.4567, 0.123456) == "23.46 ± 0.12"
    assert show_spread(PERPLEXITY, 1234.5, 3.21) == "1234 ± 3"
    assert show_spread(PERPLEXITY, 23.4567, math.nan) == "23.46"


def test_figures_targets_and_axes_follow_the_metric() -> None:
    assert (drawn_score(ACCURACY, 0.12345), drawn_score(PERPLEXITY, 23.45678)) == (12.35, 23.4568)
    assert drawn_score(PERPLEXITY, math.inf) is None
    assert (show_target(ACCURACY, 0.8), show_target(PERPLEXITY, 25)) == ("80 %", "25")
    assert (score_axis(ACCURACY), score_axis(PERPLEXITY)) == ("test accuracy, %", "test perplexity")
    assert (with_arrow(ACCURACY), with_arrow(PERPLEXITY)) == ("accuracy ↑", "perplexity ↓")
    told = describe_metrics([ACCURACY, PERPLEXITY, ACCURACY])
    assert told == "accuracy in percent, higher is better; perplexity, lower is better"


def test_the_best_comes_first_and_the_unknown_last() -> None:
    values = [(2.0, "b"), (math.nan, "d"), (1.0, "a"), (math.inf, "c")]
    assert best_first(PERPLEXITY, values) == ["a", "b", "d", "c"]
    assert best_first(ACCURACY, values) == ["b", "a", "d", "c"]
