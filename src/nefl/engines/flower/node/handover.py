"""The way from a thin client to the trainer beside it, and back: a socket of this user's alone.

What goes over it is a heading, JSON, with the sizes of the parts that follow. Messages and contexts
are parts, written as Flower itself writes them; nothing is pickled. Sizes are compared with a limit
before anything is given memory.
"""

import json
import os
import socket
import stat
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.common.serde import (
    context_from_proto,
    context_to_proto,
    message_from_proto,
    message_to_proto,
)
from flwr.proto.message_pb2 import Context as ContextBytes
from flwr.proto.message_pb2 import Message as MessageBytes
from google.protobuf.message import DecodeError, EncodeError

from nefl.errors import RunError

MOST_BYTES = 2**31 - 1
"""What the parts of one message may take together: more than that protobuf cannot write."""

HEADING_BYTES = 1 << 20
"""What a heading may take."""

_LENGTH = struct.Struct(">Q")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid, as Linux tells them


class HandoverError(RunError):
    """Something that cannot be handed over: too large, damaged, or somebody else's."""


def check_place(place: Path) -> None:
    """Make sure that nobody else could have put a socket here, or can reach it.

    Raises:
        OSError: if there is none.
        HandoverError: if folder or socket are not this user's alone.
    """
    _check_own(place.parent)
    _check_own(place)
    if not stat.S_ISSOCK(place.lstat().st_mode):
        raise HandoverError(f"{place}: is no socket")


def _check_own(path: Path) -> None:
    found = path.lstat()
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise HandoverError(f"{path}: is not this user's alone; it needs mode 0700 or 0600")


def check_peer(connection: socket.socket) -> None:
    """Make sure that the process at the other end is this user's, where the system says so.

    Raises:
        HandoverError: if it is not.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return
    size = _CREDENTIALS.size
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = _CREDENTIALS.unpack(told)
    if user != os.geteuid():
        raise HandoverError(f"the process at the other end is user {user}'s")


def listen_at(place: Path) -> socket.socket:
    """Return a socket that listens for this user's processes; one that was left there is replaced.

    Raises:
        HandoverError: if the folder is not this user's alone.
        OSError: if it cannot be made.
    """
    _check_own(place.parent)
    place.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(place))
    finally:
        os.umask(before)
    listener.listen(1)
    return listener


def send(
    connection: socket.socket,
    heading: Mapping[str, Any],
    parts: Sequence[bytes] = (),
    most: int = MOST_BYTES,
) -> None:
    """Send a heading and its parts.

    Raises:
        HandoverError: if they are too large; then nothing was sent.
        OSError: if the other end is gone.
    """
    sizes = [len(part) for part in parts]
    _check_size(sum(sizes), most)
    text = json.dumps({**heading, "parts": sizes}).encode()
    if len(text) > HEADING_BYTES:
        raise HandoverError(f"a heading of {len(text)} bytes, at most {HEADING_BYTES} are taken")
    connection.sendall(_LENGTH.pack(len(text)) + text)
    for part in parts:
        connection.sendall(part)


def receive(
    connection: socket.socket, most: int = MOST_BYTES
) -> tuple[dict[str, Any], list[bytearray]]:
    """Receive a heading and its parts.

    Raises:
        HandoverError: if they are too large or no such thing.
        OSError: if the other end is gone before all of it has come.
    """
    (length,) = _LENGTH.unpack(_receive_bytes(connection, _LENGTH.size))
    if length > HEADING_BYTES:
        raise HandoverError(f"a heading of {length} bytes, at most {HEADING_BYTES} are taken")
    try:
        heading = json.loads(_receive_bytes(connection, length))
        sizes = [int(size) for size in heading["parts"]]
    except (ValueError, KeyError, TypeError) as error:
        raise HandoverError(f"a heading that cannot be read ({error})") from None
    if min(sizes, default=0) < 0:
        raise HandoverError("a part of a negative size")
    _check_size(sum(sizes), most)
    return heading, [_receive_bytes(connection, size) for size in sizes]


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise HandoverError(f"a message of {size} bytes, at most {most} are taken")


def _receive_bytes(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = connection.recv_into(view)
        if not got:
            raise ConnectionResetError("the other end closed the connection")
        view = view[got:]
    return data


def write_parts(message: Message, context: Context) -> list[bytes]:
    """Write a message and the context it belongs to, as Flower does.

    Raises:
        HandoverError: if they cannot be written.
    """
    try:
        written = (message_to_proto(message), context_to_proto(context))
        return [each.SerializeToString() for each in written]
    except (EncodeError, ValueError) as error:
        raise HandoverError(f"cannot be written ({str(error)[:200]})") from None


def read_parts(parts: Sequence[bytearray]) -> tuple[Message, Context]:
    """Read a message and its context.

    Raises:
        HandoverError: if that is not what the parts are.
    """
    try:
        message, context = (bytes(part) for part in parts)
        return (
            message_from_proto(MessageBytes.FromString(message)),
            context_from_proto(ContextBytes.FromString(context)),
        )
    except (DecodeError, ValueError) as error:
        raise HandoverError(f"no message and context ({str(error)[:200]})") from None
