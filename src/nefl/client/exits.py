"""Objectives of models with several exits, which are trained together and teach each other."""

import math
from dataclasses import dataclass
from typing import Protocol, cast

from torch import Tensor, nn

from nefl.client.objective import Local, Objective
from nefl.client.teaching import divergence
from nefl.config.checks import require

TEMPERATURE = 3.0
"""How much `Graded` softens the predictions that are compared."""

TEACHING = 0.5
"""The share of an early exit's loss in `Graded` that comes from the last one's predictions."""


class HasExits(Protocol):
    """A model with early classifiers."""

    def forward_exits(self, x: Tensor) -> list[Tensor]:
        """Return the logits of every classifier, the deepest last."""


@dataclass(frozen=True)
class Mutual(Objective):
    """Lets all exits learn together and from each other (DepthFL's loss).

    The sum of all exits' losses, and for each exit the mean divergence of its predictions from
    those of the others, which are taken as given.

    Attributes:
        slow_start: rounds over which the divergence comes to its full weight; in round t of T it
            weighs exp(-5 (1 - t / T)²). 0 gives it that weight at once.
    """

    slow_start: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no number of rounds."""
        require(self.slow_start >= 0, f"slow_start is {self.slow_start}: give 0 rounds or more")

    @property
    def needs_exits(self) -> bool:
        """A model must have `forward_exits`."""
        return True

    def loss(self, local: Local, inputs: Tensor, target: Tensor) -> Tensor:
        """Return the sum over the exits."""
        exits = _exits(local.model, inputs)
        losses = [local.learned.loss_of(logits, target) for logits in exits]
        for student in exits:
            others = [teacher for teacher in exits if teacher is not student]
            losses += [
                self._weighted(
                    divergence(student, teacher, local.learned) / len(others), local.round_number
                )
                for teacher in others
            ]
        return sum(losses[1:], start=losses[0])

    def _weighted(self, apart: Tensor, round_number: int) -> Tensor:
        if round_number >= self.slow_start:
            return apart
        return apart * math.exp(-5 * (1 - round_number / self.slow_start) ** 2)


@dataclass(frozen=True)
class Graded(Objective):
    """Lets the last exit teach the earlier ones, deeper exits counting more (ScaleFL's loss).

    Exit i of n weighs 2 i / (n (n + 1)), so that the weights sum to 1.
    """

    @property
    def needs_exits(self) -> bool:
        """A model must have `forward_exits`."""
        return True

    def loss(self, local: Local, inputs: Tensor, target: Tensor) -> Tensor:
        """Return the weighted sum over the exits."""
        *early, last = _exits(local.model, inputs)
        count = len(early) + 1
        total = local.learned.loss_of(last, target) * count
        for position, logits in enumerate(early, start=1):
            own = local.learned.loss_of(logits, target)
            taught = divergence(logits, last, local.learned, TEMPERATURE)
            total = total + position * ((1 - TEACHING) * own + TEACHING * taught)
        return total * 2 / (count * (count + 1))


def _exits(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    return cast("HasExits", model).forward_exits(inputs)
