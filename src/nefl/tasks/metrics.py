"""What is measured of a submodel: metrics as sums over examples, which any process can add up.

A metric turns the outputs and targets of a batch into a few sums, and the sums of all batches into
a value. So a test set can be scored in pieces, anywhere, and the value is that of the whole.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from nefl.errors import ConfigError
from nefl.measured import MeasuredBy
from nefl.own_code import call_own
from nefl.references import import_thing, is_reference

Sums = Sequence[float]


@dataclass(frozen=True)
class Metric(MeasuredBy):
    """One thing that is measured, and how.

    Attributes:
        sums: from a batch's outputs and targets to a vector of sums.
        value: from the sums over all batches to the value.
    """

    sums: Callable[[Tensor, Tensor], Tensor]
    value: Callable[[Sums], float]


def ratio(sums: Sums) -> float:
    """Return the first sum over the second."""
    return sums[0] / sums[1] if sums[1] else math.nan


def _pair(total: Tensor, count: int) -> Tensor:
    return torch.stack((total.double(), torch.tensor(count, dtype=torch.float64).to(total.device)))


IGNORED = -100
"""The target that torch's cross-entropy passes over, and so do metrics of classes."""


def flat_logits(outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits [n, classes] and targets [n], of a batch or of every token that counts."""
    if target.is_floating_point() or outputs.shape[-1] < 2:
        raise ConfigError("is of classes, and this task learns numbers; see what fits in the docs")
    logits, truth = outputs.reshape(-1, outputs.shape[-1]), target.reshape(-1)
    counted = truth != IGNORED
    return (logits, truth) if bool(counted.all()) else (logits[counted], truth[counted])


def _hits(outputs: Tensor, target: Tensor, best: int) -> Tensor:
    logits, truth = flat_logits(outputs, target)
    if best == 1:
        right = logits.argmax(1) == truth
    else:
        top = logits.topk(min(best, logits.shape[1]), dim=1).indices
        right = (top == truth[:, None]).any(1)
    return _pair(right.sum(), len(truth))


def _cross_entropy(outputs: Tensor, target: Tensor) -> Tensor:
    logits, truth = flat_logits(outputs, target)
    return _pair(functional.cross_entropy(logits, truth, reduction="sum"), len(truth))


def _confusion(outputs: Tensor, target: Tensor) -> Tensor:
    """Return for each class how often it was rightly said, said, and true."""
    logits, truth = flat_logits(outputs, target)
    classes, said = logits.shape[1], logits.argmax(1)
    counted = (said[said == truth], said, truth)
    return torch.cat([torch.bincount(each, minlength=classes) for each in counted]).double()


def _macro_f1(sums: Sums) -> float:
    """Return the mean over classes of 2 right / (said + true); a class that never came is none."""
    classes = len(sums) // 3
    scores = [
        2 * right / (said + true)
        for right, said, true in zip(
            sums[:classes], sums[classes : 2 * classes], sums[2 * classes :], strict=True
        )
        if said + true
    ]
    return sum(scores) / len(scores) if scores else math.nan


def _as_numbers(outputs: Tensor, target: Tensor) -> Tensor:
    if outputs.numel() != target.numel():
        each = outputs.numel() // max(target.numel(), 1)
        raise ConfigError(
            f"is of numbers, and this task has {each} outputs for a target; see what fits in docs"
        )
    return outputs.reshape(target.shape)


def _errors(power: int) -> Callable[[Tensor, Tensor], Tensor]:
    def sums(outputs: Tensor, target: Tensor) -> Tensor:
        apart = (_as_numbers(outputs, target) - target).double().abs()
        return _pair(apart.pow(power).sum(), target.numel())

    return sums


def _spread(outputs: Tensor, target: Tensor) -> Tensor:
    """Return squared errors, targets, squared targets and their number."""
    truth = target.double()
    apart = _as_numbers(outputs, target).double() - truth
    count = torch.tensor(float(target.numel()), dtype=torch.float64, device=target.device)
    return torch.stack((apart.square().sum(), truth.sum(), truth.square().sum(), count))


def _explained(sums: Sums) -> float:
    errors, total, squares, count = sums
    spread = squares - total * total / count if count else 0.0
    return 1 - errors / spread if spread > 0 else math.nan


def _perplexity(sums: Sums) -> float:
    mean = ratio(sums)
    return math.exp(mean) if mean < 700 else math.inf  # where exp ends


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "up", lambda o, t: _hits(o, t, 1), ratio, percent=True),
        Metric("top-5", "up", lambda o, t: _hits(o, t, 5), ratio, percent=True),
        Metric("f1", "up", _confusion, _macro_f1, percent=True),
        Metric("perplexity", "down", _cross_entropy, _perplexity),
        Metric("cross-entropy", "down", _cross_entropy, ratio),
        Metric("mae", "down", _errors(1), ratio),
        Metric("rmse", "down", _errors(2), lambda sums: math.sqrt(ratio(sums))),
        Metric("r2", "up", _spread, _explained),
    )
}
"""Metrics by name: f1 is the mean over classes, mae and rmse the mean absolute and the root mean
squared error, r2 the share of the target's variance that is explained.
"""


def find_metric(name: str) -> Metric:
    """Return a metric by name, or a user's own by `package.module:thing`.

    Raises:
        ConfigError: if there is no such metric.
    """
    if is_reference(name):
        found = import_thing(name)
        if not isinstance(found, Metric) and callable(found):
            found = call_own(name, found, {})
        if not isinstance(found, Metric):
            raise ConfigError(f"{name}: is {type(found).__name__}; expected a nefl.Metric")
        return found
    if name not in METRICS:
        raise ConfigError(f"metric {name!r} is unknown; there are: {', '.join(METRICS)}")
    return METRICS[name]
