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
    check_place(place)
    parts = write_parts(message, context)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(GREETING_SECONDS)
        connection.connect(str(place))
        check_peer(connection)
        greeting, _ = receive(connection)
        connection.settimeout(None)  # training takes as long as it takes
        whose = {"nefl": version("nefl"), "run": context.run_id, "path": sys.path, "app": app}
        send(connection, {"whose": whose}, parts, int(greeting["most"]))
        heading, parts_back = receive(connection)
    if "refused" in heading:
        raise HandoverError(str(heading["refused"]))
    if "raised" in heading:
        return _raised(heading)
    return read_parts(parts_back)


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
