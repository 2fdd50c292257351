"""What a client minimises: the last classifier's loss, or that of all exits with distillation."""

from collections.abc import Callable
from typing import Literal, Protocol, cast

from torch import Tensor, nn
from torch.nn import functional

TaskLoss = Callable[[Tensor, Tensor], Tensor]
"""From outputs and targets to the mean loss of a batch."""

Loss = Callable[[nn.Module, Tensor, Tensor, TaskLoss], Tensor]
"""From a model, a batch of inputs, its targets and the task's own loss to a scalar."""

LossName = Literal["plain", "mutual", "graded"]

TEMPERATURE = 3.0
"""How much `graded` softens the predictions that are compared."""

TEACHING = 0.5
"""The share of an early exit's loss in `graded` that comes from the last one's predictions."""


class HasExits(Protocol):
    """A model with early classifiers."""

    def forward_exits(self, x: Tensor) -> list[Tensor]:
        """Return the logits of every classifier, the deepest last."""


def plain(model: nn.Module, batch: Tensor, target: Tensor, loss: TaskLoss) -> Tensor:
    """Return the task's loss of the deepest classifier."""
    return loss(model(batch), target)


def mutual(model: nn.Module, batch: Tensor, target: Tensor, loss: TaskLoss) -> Tensor:
    """Let all exits learn together and from each other (DepthFL's loss).

    The sum of all exits' losses, and for each exit the mean divergence of its
    predictions from those of the others, which are taken as given.
    """
    exits = _exits(model, batch)
    losses = [loss(logits, target) for logits in exits]
    for student in exits:
        others = [teacher for teacher in exits if teacher is not student]
        losses += [_divergence(student, teacher) / len(others) for teacher in others]
    return sum(losses[1:], start=losses[0])


def graded(model: nn.Module, batch: Tensor, target: Tensor, loss: TaskLoss) -> Tensor:
    """Let the last exit teach the earlier ones, deeper exits counting more (ScaleFL's loss).

    Exit i of n weighs 2 i / (n (n + 1)), so that the weights sum to 1.
    """
    *early, last = _exits(model, batch)
    count = len(early) + 1
    total = loss(last, target) * count
    for position, logits in enumerate(early, start=1):
        own = loss(logits, target)
        taught = _divergence(logits / TEMPERATURE, last / TEMPERATURE) * TEMPERATURE**2
        total = total + position * ((1 - TEACHING) * own + TEACHING * taught)
    return total * 2 / (count * (count + 1))


def _exits(model: nn.Module, batch: Tensor) -> list[Tensor]:
    return cast("HasExits", model).forward_exits(batch)


def _divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean Kullback-Leibler divergence of a student's logits from a teacher's."""
    return functional.kl_div(
        functional.log_softmax(student.flatten(0, -2), 1),
        functional.log_softmax(teacher.detach().flatten(0, -2), 1),
        reduction="batchmean",
        log_target=True,
    )


LOSSES: dict[LossName, Loss] = {"plain": plain, "mutual": mutual, "graded": graded}
