"""Waitress, with an end to every connection: no client holds one for as long as it likes."""

import socket
import time
from contextlib import suppress
from typing import Any

from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import TcpWSGIServer

CONNECTIONS = 200
"""Open connections. Where one more comes, the one that has kept us waiting longest has to go."""

IDLE_SECONDS = 20
"""After so long without a byte a connection is closed."""

REQUEST_SECONDS = 60
"""A request that is not sent, or an answer that is not taken within that time is given up."""


class _Request(HTTPRequestParser):  # type: ignore[misc]  # waitress has no types
    """A request that is the last of its connection.

    Of many that are sent in one go, whose answers nobody takes, each would hold a thread.
    """

    def parse_header(self, header_plus: bytes) -> None:
        """Read what comes before the body.

        Raises:
            ParsingError: if it is none; waitress then answers 400.
        """
        try:
            super().parse_header(header_plus)
        except ValueError:  # a length of more digits than Python reads, or a broken address
            raise ParsingError("the header has a number or an address that is none") from None
        self.headers["CONNECTION"] = "close"
        self.connection_close = True


class _Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A connection that knows when its request began."""

    parser_class = _Request
    began = 0.0

    def received(self, data: bytes) -> Any:
        """Take bytes of a request."""
        if self.request is None:
            self.began = time.time()
        return super().received(data)

    def waits_since(self) -> float:
        """Return since when the client keeps us waiting."""
        return float(self.began if self.is_halfway() else self.last_activity)

    def is_halfway(self) -> bool:
        """Whether a request is not sent, or an answer not taken, to its end."""
        return self.request is not None or self.total_outbufs_len > 0

    def end(self) -> None:
        """Close, also where the client takes nothing and the system would wait for it."""
        self.will_close = True
        with suppress(OSError):  # it has gone already
            self.socket.shutdown(socket.SHUT_RDWR)


class LimitedServer(TcpWSGIServer):  # type: ignore[misc]  # waitress has no types
    """A server that ends connections which keep it waiting."""

    channel_class = _Channel

    def readable(self) -> Any:
        """Make room for whoever comes next, then listen."""
        if len(self.active_channels) >= CONNECTIONS:
            waiting = [c for c in self.active_channels.values() if _can_end(c)]
            if waiting:
                min(waiting, key=_Channel.waits_since).end()
        return super().readable()

    def maintenance(self, now: float) -> None:
        """End what has been silent or halfway for too long."""
        for channel in list(self.active_channels.values()):
            if not _can_end(channel):
                continue
            silent = channel.last_activity < now - IDLE_SECONDS
            if silent or (channel.is_halfway() and channel.began < now - REQUEST_SECONDS):
                channel.end()


def _can_end(channel: _Channel) -> bool:
    """Whether it is the client's turn, and the connection is not ended yet."""
    return not channel.will_close and not channel.requests
