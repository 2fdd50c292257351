"""Sending messages to nodes, and looking for their replies without being held up by any of them."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

__all__ = ["Context", "Grid", "Mailbox", "Note"]

Note = Callable[..., None]
"""Writes an event into the run's log: its name, then what belongs to it as keywords."""

LOOK_SECONDS = 0.2
"""How long a look for replies waits for those that are just coming in."""


class Mailbox:
    """The server's end of Flower.

    Flower announces a reply before its tensors are there and then waits for them, for minutes if
    need be: one slow or dishonest node could hold up a whole round. So every message is looked
    after in a thread of its own.

    Args:
        grid: what Flower gives a ServerApp.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._looking: dict[str, Future[list[Message]]] = {}

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
        """Return the replies to these messages that are there; those still coming in, next time."""
        looks = {number: self._look(number) for number in numbers}
        wait(looks.values(), LOOK_SECONDS)
        replies: list[Message] = []
        for number, look in looks.items():
            if look.done():
                del self._looking[number]
                replies += look.result()
        return replies

    def busy(self, number: str) -> bool:
        """Whether a reply to a message may be coming in just now."""
        return number in self._looking

    def forget(self, numbers: Iterable[str]) -> None:
        """Look no more for replies to these messages; one that is just coming in is let go."""
        for number in numbers:
            self._looking.pop(number, None)

    def nodes(self) -> dict[int, str]:
        """Return the nodes that are there, each with the name its operator registered, if any."""
        return {node.node_id: node.name for node in self._grid.get_nodes()}

    def _look(self, number: str) -> "Future[list[Message]]":
        """Look for a reply, unless that is being done."""
        if number in self._looking:
            return self._looking[number]
        look: Future[list[Message]] = Future()

        def pull() -> None:
            try:
                look.set_result(list(self._grid.pull_messages([number])))
            except BaseException as error:
                look.set_exception(error)  # raised where the reply is asked for

        self._looking[number] = look
        # A daemon: a reply that never comes in whole must not keep the process alive.
        threading.Thread(target=pull, daemon=True, name=f"reply-{number[:8]}").start()
        return look
