"""A thin client: it hands its messages to a trainer that stays alive, and imports no torch itself.

Flower starts a process for every message. This one has little to load; what is slow to load is in
the trainer, which `nefl flower node` keeps beside the SuperNode. Where no trainer answers, the
message is answered in this process.
"""

import builtins
import importlib
import logging
import os
import socket
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from nefl import errors
from nefl.engines.flower.node.handover import (
    HandoverError,
    check_peer,
    check_place,
    read_parts,
    receive,
    send,
    write_parts,
)
from nefl.engines.flower.programs.environment import PLACE
from nefl.errors import ConfigError, RunError

SITE_CLIENT = "nefl.engines.flower.node.site_client:site_client"
"""The client that trains as nefl does."""

GREETING_SECONDS = 10.0
"""How long a trainer may take to say that it is there; one that is busy with another does not."""

NEXT_SECONDS, LOOK_SECONDS = 60.0, 0.1
"""How long the next trainer is waited for when this one serves another run, and how often it is
looked for. Training in this process would load what it loads, at the same time."""

_LOG = logging.getLogger("nefl")


class WarmClient(ClientApp):
    """A Flower client whose messages are answered by another one, in the trainer if there is one.

    Args:
        app: that client, as `package.module:name`.
    """

    def __init__(self, app: str) -> None:
        super().__init__()
        self._app = app

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        place = os.environ.get(PLACE)
        if place:
            try:
                answer = _ask_trainer(Path(place), self._app, message, context)
            except (OSError, HandoverError) as error:
                _LOG.warning("no answer of the trainer (%s): training in this process", error)
            else:
                return _taken(answer, context)
        return load_client(self._app)(message, context)


def warm_client(app: str = SITE_CLIENT) -> WarmClient:
    """Return the thin client of an app.

    Args:
        app: the client that answers, as `package.module:name`: a `ClientApp`, or a function that
            makes one. Write it in a module of its own, which is imported where it is needed: in
            the trainer. By default the client that trains as nefl does.

    Raises:
        ConfigError: if that is no such name.
    """
    module, _, name = app.partition(":")
    if not module or not name:
        raise ConfigError(f"client {app!r}: give it as package.module:name")
    return WarmClient(app)


def load_client(app: str) -> ClientApp:
    """Import the client that answers messages.

    Raises:
        ConfigError: if it is no client.
    """
    module, _, name = app.partition(":")
    found = getattr(importlib.import_module(module), name, None)
    if callable(found) and not isinstance(found, ClientApp):
        found = found()
    if not isinstance(found, ClientApp):
        raise ConfigError(f"{app}: is neither a ClientApp nor a function that makes one")
    return found


def _ask_trainer(
    place: Path, app: str, message: Message, context: Context
) -> tuple[Message, Context] | Exception:
    """Return the trainer's answer, and the context after it; or what the client there raised.

    Raises:
        OSError: if there is no trainer, it does not greet, or it ends on the way.
        HandoverError: if it is not this user's, serves another run, or the message is too large.
    """
    parts = write_parts(message, context)
    whose = {"nefl": version("nefl"), "run": context.run_id, "path": sys.path, "app": app}
    heading, parts_back = _hand_over(_call(place), whose, parts)
    if "refused" in heading:
        heading, parts_back = _hand_over(_call_next(place), whose, parts)
    if "refused" in heading:
        raise HandoverError(str(heading["refused"]))
    if "raised" in heading:
        return _raised(heading)
    return read_parts(parts_back)


def _call(place: Path) -> tuple[socket.socket, int]:
    """Return a connection to the trainer, and the bytes that it takes, once it has greeted.

    Raises:
        OSError: if there is no trainer, or it does not greet.
        HandoverError: if it is not this user's.
    """
    check_place(place)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(GREETING_SECONDS)
        connection.connect(str(place))
        check_peer(connection)
        greeting, _ = receive(connection)
        return connection, int(greeting["most"])
    except BaseException:
        connection.close()
        raise


def _call_next(place: Path) -> tuple[socket.socket, int]:
    """Return a connection to the trainer that is started in place of one that ends.

    Raises:
        OSError: if none comes.
        HandoverError: if it is not this user's.
    """
    until = time.monotonic() + NEXT_SECONDS
    while True:
        try:
            return _call(place)
        except OSError:
            if time.monotonic() > until:
                raise
        time.sleep(LOOK_SECONDS)


def _hand_over(
    called: tuple[socket.socket, int], whose: dict[str, Any], parts: Sequence[bytes]
) -> tuple[dict[str, Any], list[bytearray]]:
    """Send what is to be done, and return what comes back."""
    connection, most = called
    with connection:
        connection.settimeout(None)  # training takes as long as it takes
        send(connection, {"whose": whose}, parts, most)
        return receive(connection)


def _raised(heading: dict[str, Any]) -> Exception:
    """Return an error of the trainer's as one of this process, of the same class if it is known."""
    name, text = str(heading["raised"]), str(heading.get("text", ""))
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:  # one that is made of more than a text
            pass
    return RunError(f"{name}: {text}")


def _taken(answer: tuple[Message, Context] | Exception, context: Context) -> Message:
    if isinstance(answer, Exception):
        raise answer
    message, after = answer
    # In place: the context is the caller's, who keeps what is in it.
    for key in list(context.state):
        del context.state[key]
    for key, record in after.state.items():
        context.state[key] = record
    return message
