"""Turns: one request at a time, and a bounded number behind it."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock

from nefl.web.callers import Refusal


class Lane:
    """Lets one request through at a time.

    Args:
        places: how many may be in it, the one at work included; more are told to come again.
    """

    def __init__(self, places: int) -> None:
        self._places = BoundedSemaphore(places)
        self._one = Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for one's turn, and have it.

        Raises:
            Refusal: 503, if too many wait already.
        """
        if not self._places.acquire(blocking=False):
            raise Refusal(503, "busy with others; try again in a moment")
        try:
            with self._one:
                yield
        finally:
            self._places.release()
