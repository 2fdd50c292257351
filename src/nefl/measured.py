"""What a number that was measured says, and which of two is better."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class MeasuredBy:
    """What a number that was measured says.

    Attributes:
        name: what it is called in logs, tables and figures.
        better: whether a good value is high (`up`) or low (`down`).
        percent: whether people read it in percent.
    """

    name: str
    better: Literal["up", "down"]
    percent: bool = field(default=False, kw_only=True)

    def is_better(self, one: float, other: float) -> bool:
        """Whether a value is better than another; any number is better than none."""
        if math.isnan(one) or math.isnan(other):
            return math.isnan(other) and not math.isnan(one)
        return one > other if self.better == "up" else one < other

    def reached(self, value: float, target: float) -> bool:
        """Whether a value is as good as a target."""
        return value == target or self.is_better(value, target)

    def best(self, values: Sequence[float]) -> float:
        """Return the best of some values."""
        found = self.worst_possible
        for value in values:
            found = value if self.is_better(value, found) else found
        return found

    @property
    def worst_possible(self) -> float:
        """What every value is at least as good as."""
        return -math.inf if self.better == "up" else math.inf
