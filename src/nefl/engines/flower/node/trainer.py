"""The trainer of a node: a process that stays alive and answers the messages of thin clients.

    python -m nefl.engines.flower.node.trainer SOCKET MEMORY

It serves one client at a time and one run of one app: code, data and the partition are loaded once.
What a client keeps comes and goes with each message, in Flower's context; nothing else of one
message is there at the next. When it is asked for another run, or holds more memory than it may
after a message, it ends, and whoever started it starts another.
"""

import gc
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp

from nefl.engines.flower.node.handover import (
    MOST_BYTES,
    HandoverError,
    check_peer,
    listen_at,
    read_parts,
    receive,
    send,
    write_parts,
)
from nefl.engines.flower.node.warm_client import SITE_CLIENT, load_client
from nefl.engines.machine import held_memory
from nefl.engines.processes import end_with_starter
from nefl.engines.tuning import trim_memory

TRANSFER_SECONDS = 60.0
"""How long a client may pause while it sends its message or takes the answer."""

TEXT_LENGTH = 10_000
"""Characters of an error that go back to the client."""

_LOG = logging.getLogger("nefl")


class Trainer:
    """What answers messages.

    Args:
        memory: bytes that it may hold after a message.
        most: bytes that a message may have.
    """

    def __init__(self, memory: int, most: int = MOST_BYTES) -> None:
        self._memory = memory
        self._most = most
        self._whose: Mapping[str, Any] | None = None
        self._client: ClientApp | None = None

    def serve(self, listener: socket.socket) -> str:
        """Answer clients, one after another, until another process should; return why."""
        gc.freeze()  # what was imported so far need not be looked through after every message
        reason = ""
        while not reason:
            connection, _ = listener.accept()
            with connection:
                try:
                    reason = self._answer(connection)
                except (OSError, HandoverError) as error:
                    _LOG.warning("trainer: a client was not answered (%s)", error)
            gc.collect()
            trim_memory()
            held = held_memory()
            if not reason and held is not None and held > self._memory:
                reason = f"it holds {held} bytes after a message, and may hold {self._memory}"
        return reason

    def _answer(self, connection: socket.socket) -> str:
        connection.settimeout(TRANSFER_SECONDS)
        check_peer(connection)
        send(connection, {"most": self._most})
        heading, parts = receive(connection, self._most)
        whose = heading.get("whose")
        if self._whose is None:
            self._whose = whose
        if whose != self._whose:
            send(connection, {"refused": "it serves another run; the next one is started"})
            return "it was asked for another run"
        started = time.monotonic()
        with _Company(connection):
            answer = self._train(parts)
        send(connection, *answer, most=self._most)
        _LOG.info("trainer: answered a message in %.2f s", time.monotonic() - started)
        connection.shutdown(socket.SHUT_RDWR)  # what was sent is there; nobody waits for more
        return ""

    def _train(self, parts: list[bytearray]) -> tuple[dict[str, Any], list[bytes]]:
        """Return the heading and the parts of an answer."""
        try:
            message, context = read_parts(parts)
            reply = self._load()(message, context)
            return {}, write_parts(reply, context)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the server must learn of it, whatever it is
            _LOG.exception("trainer: the client raised an exception")
            return {"raised": type(error).__name__, "text": str(error)[:TEXT_LENGTH]}, []

    def _load(self) -> ClientApp:
        if self._client is None:
            whose = self._whose or {}
            # In the client's order: its app's folder comes first there.
            path = [str(entry) for entry in whose["path"]]
            sys.path[:] = path + [entry for entry in sys.path if entry not in path]
            self._client = load_client(str(whose["app"]))
        return self._client


class _Company:
    """Stays with a client while its message is answered, and ends the process if the client goes.

    What is trained would be for nobody, and the next client would wait for it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._stay, daemon=True)

    def __enter__(self) -> None:
        self._connection.settimeout(None)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._connection.settimeout(TRANSFER_SECONDS)

    def _stay(self) -> None:
        try:
            gone = not self._connection.recv(1, socket.MSG_PEEK)
        except OSError:
            gone = True
        if gone and not self._done.is_set():
            _LOG.warning("trainer: the client has gone; ending what it had asked for")
            os._exit(0)


def main() -> None:
    """Serve until another process should."""
    end_with_starter()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    load_client(SITE_CLIENT)  # for what it imports: the first message should find it there
    with listen_at(Path(sys.argv[1])) as listener:
        _LOG.info("trainer: ready")
        reason = Trainer(int(sys.argv[2])).serve(listener)
    _LOG.info("trainer: starting anew, because %s", reason)


if __name__ == "__main__":
    main()
