"""What a flood sends: pictures that unpack to much, requests that never end, rubbish."""

import io
import socket
import struct
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from random import Random
from threading import Event

from PIL import Image

Attack = Callable[[int, Random, Event], None]
"""Does its worst to a port of 127.0.0.1 once; what it holds on to it lets go at the event."""

BOMBS = (
    ("PNG", "RGBA", 8000, 8000),
    ("PNG", "RGBA", 8000, 5000),
    ("PNG", "P", 8000, 8000),
    ("WEBP", "RGB", 4000, 3700),
    ("JPEG", "RGB", 8000, 8000),
    ("PROGRESSIVE", "RGB", 6500, 6000),
)
"""Format, mode, width and height of pictures that just pass the limits."""

HELD = 40
"""Connections that each attacker holds."""


def send(port: int, data: bytes, timeout: float = 30) -> bytes:
    """Send a whole request and return the start of the answer, if there is one."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        connection.sendall(data)
        return connection.recv(4096)


def post(picture: bytes, host: str = "localhost") -> bytes:
    head = f"POST /predict HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(picture)}\r\n\r\n".encode() + picture


@lru_cache
def picture(kind: str, mode: str, width: int, height: int) -> bytes:
    """Return a picture of one colour: much to unpack, little to send."""
    out = io.BytesIO()
    progressive = kind == "PROGRESSIVE"
    form = "JPEG" if progressive else kind
    Image.new(mode, (width, height)).save(out, form, progressive=progressive)
    return out.getvalue()


def announced(width: int, height: int) -> bytes:
    """Return a PNG that announces more than it has."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(data, 0))

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"\0" * 1000)


def bombs(port: int, rng: Random, _stop: Event) -> None:
    """Pictures at the limit of what is taken, in every format."""
    send(port, post(picture(*rng.choice(BOMBS))), timeout=120)


def too_large(port: int, rng: Random, _stop: Event) -> None:
    """Pictures that announce more than is taken."""
    side = rng.choice((9_000, 60_000, 2**31 - 1))
    send(port, post(announced(side, side)))


def small_pictures(port: int, rng: Random, _stop: Event) -> None:
    """Honest pictures, as fast as they go."""
    send(port, post(picture("PNG", "L", rng.choice((8, 640, 1500)), 480)))


def _hold(port: int, stop: Event, sent: bytes, more: bytes = b"") -> None:
    held: list[socket.socket] = []
    try:
        for _ in range(HELD):
            if stop.is_set():
                return
            with suppress(OSError):  # others were given its place
                held.append(socket.create_connection(("127.0.0.1", port), timeout=30))
                held[-1].sendall(sent)
        while more and not stop.wait(0.2):
            for connection in held:
                with suppress(OSError):
                    connection.sendall(more)
        stop.wait()
    finally:
        for connection in held:
            connection.close()


def silent(port: int, _rng: Random, stop: Event) -> None:
    """Connections that say nothing."""
    _hold(port, stop, b"")


def half_headers(port: int, _rng: Random, stop: Event) -> None:
    """Headers that stop halfway."""
    _hold(port, stop, b"GET / HTTP/1.1\r\nHost: local")


def trickles(port: int, _rng: Random, stop: Event) -> None:
    """Headers that never end."""
    _hold(port, stop, b"GET / HTTP/1.1\r\n", b"X: y\r\n")


def half_bodies(port: int, _rng: Random, stop: Event) -> None:
    """A megabyte of nine."""
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n\r\n"
    _hold(port, stop, head + b"x" * 1_000_000)


def slow_readers(port: int, _rng: Random, stop: Event) -> None:
    """Requests whose answers nobody takes."""
    _hold(port, stop, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)


def rubbish(port: int, rng: Random, _stop: Event) -> None:
    """Bytes that are no request, or nearly one."""
    starts = (
        b"",
        b"GET / HTTP/9.9\r\n",
        b"POST /predict HTTP/1.1\r\nContent-Length: -1\r\n",
        b"POST /predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
        b"GET /" + b"a" * 60_000,
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
    )
    send(port, rng.choice(starts) + rng.randbytes(200) + b"\r\n\r\n")


def strangers(port: int, rng: Random, _stop: Event) -> None:
    """Foreign names and pages: none may get an answer."""
    host, origin = rng.choice(
        (("evil.example", None), ("localhost", "http://evil.example"), ("localhost", "null"))
    )
    headers = f"Host: {host}\r\n" + (f"Origin: {origin}\r\n" if origin else "")
    said = send(port, f"GET / HTTP/1.1\r\n{headers}Connection: close\r\n\r\n".encode())
    assert said.startswith(b"HTTP/1.1 403"), said[:100]


def pages(port: int, _rng: Random, _stop: Event) -> None:
    """The page, as fast as it goes."""
    send(port, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")


ATTACKS: Mapping[str, tuple[Attack, ...]] = {
    "serve": (
        bombs,
        too_large,
        small_pictures,
        silent,
        half_headers,
        trickles,
        half_bodies,
        slow_readers,
        rubbish,
        strangers,
    ),
    "watch": (pages, silent, half_headers, trickles, slow_readers, rubbish, strangers),
}
