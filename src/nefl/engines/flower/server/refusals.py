"""Nodes that were turned away: why, and when they are looked at again.

Whatever a node was refused for may be mended while the run goes on, so none is refused for good. It
is asked again after a pause that doubles up to a bound: a node that is never mended costs a query
every ten minutes, and a line in the log whenever its reason changes.
"""

import time
from collections.abc import Container
from dataclasses import dataclass

FIRST_PAUSE = 2.0
"""Seconds until a node is looked at again that was turned away once."""

LONGEST_PAUSE = 600.0
"""The most seconds between two looks, however often it was turned away."""


@dataclass(frozen=True)
class Refusal:
    """A node that was turned away.

    Attributes:
        reason: why, the last time.
        times: how often in a row.
        due: when it is looked at again, by the monotonic clock.
    """

    reason: str
    times: int
    due: float


class Refusals:
    """The nodes that are turned away just now."""

    def __init__(self) -> None:
        self._of: dict[int, Refusal] = {}

    def add(self, node: int, reason: str) -> bool:
        """Turn a node away; return whether it is for another reason than the last time."""
        before = self._of.get(node)
        times = 1 if before is None else before.times + 1
        # 2**20 pauses are beyond any bound; larger powers are no numbers for a clock.
        pause = min(FIRST_PAUSE * 2 ** min(times - 1, 20), LONGEST_PAUSE)
        self._of[node] = Refusal(reason, times, time.monotonic() + pause)
        return before is None or before.reason != reason

    def due(self, node: int) -> bool:
        """Whether a node may be looked at: it was not turned away, or its pause is over."""
        return node not in self._of or time.monotonic() >= self._of[node].due

    def lift(self, node: int) -> Refusal | None:
        """Let a node in, and return what it was turned away for, if it was."""
        return self._of.pop(node, None)

    def keep(self, nodes: Container[int]) -> None:
        """Forget nodes that have gone: whoever comes back is asked at once."""
        self._of = {node: refusal for node, refusal in self._of.items() if node in nodes}
