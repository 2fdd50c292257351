"""In which rounds a client's update counted: a node keeps its memory of those, and of no other."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from nefl.artifacts.kept import needed_rounds


class CountedRounds:
    """The rounds that clients' memory may be needed of.

    Args:
        log: events of the run's log, where it has rounds behind it.
        oldest: tells the round of the oldest checkpoint, to which the run may go back.
    """

    def __init__(
        self, log: Iterable[Mapping[str, Any]] = (), oldest: Callable[[], int] = lambda: 0
    ) -> None:
        self._rounds: dict[int, list[int]] = {}
        self._oldest = oldest
        # A round that was run again after a kill stands there twice; the later one counts.
        logged = {int(e["round"]): e.get("clients", {}) for e in log if e.get("event") == "round"}
        for number, clients in sorted(logged.items()):
            self.settle(number, {int(client) for some in clients.values() for client in some})

    def begin(self, done: int) -> None:
        """Get ready for the round after so many: forget later ones, and those needed no more."""
        oldest = self._oldest()
        for client, rounds in self._rounds.items():
            so_far = (number for number in rounds if number <= done)
            self._rounds[client] = needed_rounds(so_far, oldest)

    def settle(self, round_number: int, counted: Collection[int]) -> None:
        """Note whose updates counted in a round."""
        for client in counted:
            self._rounds.setdefault(client, []).append(round_number)

    def of(self, client: int) -> tuple[int, ...]:
        """Return the rounds in which a client's update counted, in order."""
        return tuple(self._rounds.get(client, ()))
