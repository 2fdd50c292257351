"""Sending messages to nodes and looking for their replies, one at a time and without waiting."""

from collections.abc import Callable, Iterable

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

__all__ = ["Context", "Grid", "Mailbox", "Note"]

Note = Callable[..., None]
"""Writes an event into the run's log: its name, then what belongs to it as keywords."""


class Mailbox:
    """The server's end of Flower.

    Args:
        grid: what Flower gives a ServerApp.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def post(
        self, content: RecordDict, node: int, kind: str, *, round_number: int, seconds: float
    ) -> str | None:
        """Send a message and return its number, or nothing if it was not taken.

        Args:
            content: what stands in it.
            node: whom it is for.
            kind: Flower's message type.
            round_number: shown in Flower's logs.
            seconds: how long it is worth delivering; later it is thrown away.
        """
        message = Message(content, node, kind, ttl=seconds, group_id=str(round_number))
        # One by one: a cohort's messages together would be a cohort of models in memory.
        return next(iter(self._grid.push_messages([message])), None)

    def fetch(self, numbers: Iterable[str]) -> list[Message]:
        """Return the replies to these messages that are there."""
        wanted = list(numbers)
        return list(self._grid.pull_messages(wanted)) if wanted else []

    def nodes(self) -> dict[int, str]:
        """Return the nodes that are there, each with the name its operator registered, if any."""
        return {node.node_id: node.name for node in self._grid.get_nodes()}
