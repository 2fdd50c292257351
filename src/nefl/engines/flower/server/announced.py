"""Replies that Flower has announced, and how each of them is brought in."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flwr.app import Message
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.serverapp import Grid
from flwr.superlink.grid import HttpGrid

BATCH = 256
"""Messages that one request asks a SuperLink about."""

Download = Callable[[], list[Message]]
"""Brings a reply in; an empty list if there is none after all."""


def announced(grid: Grid, numbers: Sequence[str]) -> dict[str, Download]:
    """Return how to bring in the replies that may be there, by the numbers of their messages.

    A SuperLink is asked about many messages at once, and names the replies that have been
    announced. What Flower does next, to wait for the parts of one reply after the other, is left to
    each download for itself. Any other grid is asked for each reply alone.
    """
    if not isinstance(grid, HttpGrid):
        return {number: partial(_pull, grid, [number]) for number in numbers}
    found: dict[str, Download] = {}
    for start in range(0, len(numbers), BATCH):
        request = PullAppMessagesRequest(message_ids=numbers[start : start + BATCH])
        response = grid._runtime_client.PullMessages(request)  # noqa: SLF001 - no other way
        for message, tree in zip(
            response.messages_list, response.message_object_trees, strict=True
        ):
            alone = PullAppMessagesResponse(messages_list=[message], message_object_trees=[tree])
            number = message.metadata.reply_to_message_id
            found[number] = partial(_pull, _having_asked(grid, alone), [number])
    return found


def _pull(grid: Grid, numbers: Sequence[str]) -> list[Message]:
    return list(grid.pull_messages(numbers))


def _having_asked(grid: HttpGrid, response: PullAppMessagesResponse) -> HttpGrid:
    """Return the grid as it is once the SuperLink has given this response."""
    one = copy.copy(grid)
    one.__dict__["_client"] = _Answered(grid._runtime_client, response)  # noqa: SLF001 - likewise
    return one


class _Answered:
    """A connection to the SuperLink on which its answer to the next question is known."""

    def __init__(self, client: object, response: PullAppMessagesResponse) -> None:
        self._client = client
        self._response = response

    def PullMessages(self, _request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802 - Flower's name
        return self._response

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)
