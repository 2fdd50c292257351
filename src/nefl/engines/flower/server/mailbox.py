"""Sending messages to nodes, and looking for their replies without being held up by any of them."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait

from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from nefl.engines.flower.server.announced import announced
from nefl.engines.flower.server.carriers import Carriers

__all__ = ["Context", "Grid", "Mailbox", "Note"]

Note = Callable[..., None]
"""Writes an event into the run's log: its name, then what belongs to it as keywords."""

LOOK_SECONDS = 0.2
"""How long a look for replies waits for those that are just coming in."""

THREADS = 32
"""Replies that may come in at once. So many nodes would have to announce replies and withhold them
to keep another's from coming in, and then for the three minutes that Flower bears with them."""

PUSH = 100
"""Copies of a message that one request takes to a SuperLink."""


class Mailbox:
    """The server's end of Flower.

    Flower announces a reply before its tensors are there and then waits for them, for minutes if
    need be: one slow or dishonest node could hold up a whole round. So the SuperLink is asked about
    many messages at once, and every reply that it announces is brought in by a thread, of which
    there is a bounded number.

    Args:
        grid: what Flower gives a ServerApp.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._carriers: Carriers[list[Message]] = Carriers(THREADS)
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
        taken = self.post_to_all(content, [node], kind, round_number=round_number, seconds=seconds)
        return taken.get(node)

    def post_to_all(
        self,
        content: RecordDict,
        nodes: Sequence[int],
        kind: str,
        *,
        round_number: int,
        seconds: float,
    ) -> dict[int, str]:
        """Send the same to several nodes; return the numbers of those messages that were taken."""
        taken: dict[int, str] = {}
        for start in range(0, len(nodes), PUSH):
            some = nodes[start : start + PUSH]
            numbers = self._grid.push_messages(
                [Message(content, n, kind, ttl=seconds, group_id=str(round_number)) for n in some]
            )
            # None at all come back where Flower finds the request too large.
            taken |= {n: number for n, number in zip(some, numbers, strict=False) if number}
        return taken

    def fetch(self, numbers: Iterable[str]) -> list[Message]:
        """Return the replies to these messages that are there; those still coming in, next time."""
        wanted = list(numbers)
        new = [number for number in wanted if number not in self._looking]
        for number, download in announced(self._grid, new).items():
            self._looking[number] = self._carriers.submit(download)
        looks = {number: self._looking[number] for number in wanted if number in self._looking}
        wait(looks.values(), LOOK_SECONDS)
        replies: list[Message] = []
        for number, look in looks.items():
            if look.done():
                del self._looking[number]
                replies += _sound(number, look)
        return replies

    def busy(self, number: str) -> bool:
        """Whether a reply to a message may be coming in just now."""
        return number in self._looking

    def forget(self, numbers: Iterable[str]) -> None:
        """Look no more for replies to these messages; one that is just coming in is let go."""
        for number in numbers:
            look = self._looking.pop(number, None)
            if look is not None:
                look.cancel()

    def nodes(self) -> dict[int, str]:
        """Return the nodes that are there, each with the name its operator registered, if any."""
        return {node.node_id: node.name for node in self._grid.get_nodes()}


def _sound(number: str, look: "Future[list[Message]]") -> list[Message]:
    """Return the reply to a message, if it is there; an error in its place if it is none.

    A reply is put together from what its node has written, its own metadata included. Whatever is
    wrong with that must cost this reply alone.
    """
    try:
        replies = look.result()
    except Exception as error:  # anything may come of parts that are no message
        return [_no_reply(number, f"its reply cannot be read ({type(error).__name__}: {error})")]
    if any(reply.metadata.reply_to_message_id != number for reply in replies):
        return [_no_reply(number, "its reply says that it answers another message")]
    return replies


def _no_reply(number: str, reason: str) -> Message:
    """Return an error as Flower gives it where a reply cannot be had."""
    metadata = Metadata(
        run_id=0,
        message_id="",
        src_node_id=0,
        dst_node_id=0,
        reply_to_message_id=number,
        group_id="",
        created_at=0.0,
        ttl=0.0,
        message_type="system",
    )
    return make_message(metadata, error=Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, reason))
