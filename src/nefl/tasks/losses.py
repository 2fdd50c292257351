"""The losses that tasks name: the mean over a batch's answers."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

TaskLoss = Callable[[Tensor, Tensor], Tensor]
"""From outputs and targets to the mean loss of a batch."""


def cross_entropy(outputs: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy: of a batch's classes, or of every token in it."""
    if outputs.ndim > 2:
        outputs, target = outputs.flatten(0, -2), target.flatten()
    return functional.cross_entropy(outputs, target)


def squared_error(outputs: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error."""
    return functional.mse_loss(outputs.reshape(target.shape), target)


def absolute_error(outputs: Tensor, target: Tensor) -> Tensor:
    """Return the mean absolute error."""
    return functional.l1_loss(outputs.reshape(target.shape), target)


LOSSES: dict[str, TaskLoss] = {
    "cross-entropy": cross_entropy,
    "squared-error": squared_error,
    "absolute-error": absolute_error,
}
"""Losses by name."""
