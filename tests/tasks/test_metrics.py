"""Metrics against scikit-learn's, whole and in pieces."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as known
from torch import Tensor

from nefl.errors import ConfigError
from nefl.tasks.metrics import METRICS, Metric, find_metric


def in_pieces(metric: Metric, outputs: Tensor, target: Tensor, pieces: int) -> float:
    split = (torch.tensor_split(values, pieces) for values in (outputs, target))
    parts = zip(*split, strict=True)
    sums = [metric.sums(o, t).tolist() for o, t in parts]
    return metric.value([sum(column) for column in zip(*sums, strict=True)])


def classes() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, 7, (101,), generator=generator)
    target[target == 3] = 4  # a class that never comes
    logits = torch.randn(101, 7, generator=generator)
    logits[torch.arange(101), target] += 1
    logits[:, 3] -= 50  # and is never said
    return logits, target


def said(logits: Tensor) -> np.ndarray:
    return logits.argmax(1).numpy()


Known = Callable[[Tensor, Tensor], Any]
CLASSES: dict[str, Known] = {
    "accuracy": lambda o, t: known.accuracy_score(t, said(o)),
    "top-5": lambda o, t: known.top_k_accuracy_score(t, o, k=5, labels=range(7)),
    "f1": lambda o, t: known.f1_score(t, said(o), average="macro"),
    "cross-entropy": lambda o, t: known.log_loss(t, o.softmax(1), labels=range(7)),
    "perplexity": lambda o, t: math.exp(known.log_loss(t, o.softmax(1), labels=range(7))),
}
NUMBERS: dict[str, Known] = {
    "mae": lambda o, t: known.mean_absolute_error(t, o),
    "rmse": lambda o, t: known.root_mean_squared_error(t, o),
    "r2": lambda o, t: known.r2_score(t, o),
}


def test_every_metric_is_compared() -> None:
    assert METRICS.keys() == CLASSES.keys() | NUMBERS.keys()


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("pieces", [1, 4])
def test_classes(name: str, pieces: int) -> None:
    logits, target = classes()
    found = in_pieces(METRICS[name], logits, target, pieces)
    assert found == pytest.approx(CLASSES[name](logits, target), rel=1e-5)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("pieces", [1, 4])
def test_numbers(name: str, pieces: int) -> None:
    generator = torch.Generator().manual_seed(1)
    target = torch.randn(53, generator=generator) * 3 + 10
    outputs = (target + torch.randn(53, generator=generator))[:, None]
    found = in_pieces(METRICS[name], outputs, target, pieces)
    assert found == pytest.approx(NUMBERS[name](outputs[:, 0], target), rel=1e-5)


def test_every_token_counts() -> None:
    logits, target = classes()
    rows = logits[:100].view(20, 5, 7), target[:100].view(20, 5)
    for name in ("accuracy", "perplexity"):
        flat = in_pieces(METRICS[name], logits[:100], target[:100], 1)
        assert in_pieces(METRICS[name], *rows, 3) == pytest.approx(flat)


def test_better_follows_the_direction() -> None:
    up, down = METRICS["accuracy"], METRICS["perplexity"]
    assert up.is_better(0.5, 0.4)
    assert not up.is_better(0.4, 0.5)
    assert down.is_better(3.0, 4.0)
    assert up.is_better(0.1, math.nan)
    assert not down.is_better(math.nan, 4.0)
    assert up.is_better(-5, up.worst_possible)
    assert down.is_better(5, down.worst_possible)


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(ConfigError, match="there are: accuracy"):
        find_metric("acuracy")
