"""Ways to spoil a file: blindly, in its bytes; or knowingly, in what it says."""

import json
import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]

HUGE = (2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, 2**40)


def flip(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        if changed:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def extend(data: bytes, draw: random.Random) -> bytes:
    return data + draw.choice(
        (b"\0", b"\n", draw.randbytes(100), data[: draw.randrange(999)], data)
    )


def huge_number(data: bytes, draw: random.Random) -> bytes:
    """Put a huge length where one may stand; often near an end, where most formats keep theirs."""
    code = draw.choice(("<I", "<Q", ">I", ">Q"))
    size = struct.calcsize(code)
    ends = (draw.randrange(64), len(data) - size - draw.randrange(64), draw.randrange(len(data)))
    place = max(0, min(draw.choice(ends), len(data) - size))
    number = draw.choice(HUGE) % 2 ** (8 * size)
    return data[:place] + struct.pack(code, number) + data[place + size :]


def splice(data: bytes, draw: random.Random) -> bytes:
    length = draw.randrange(1, 1 + min(4096, len(data)))
    source, target = draw.randrange(len(data)), draw.randrange(len(data))
    return data[:target] + data[source : source + length] + data[target + length :]


def drop(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + data[place + draw.randrange(1, 2000) :]


def blank(data: bytes, draw: random.Random) -> bytes:
    place, length = draw.randrange(len(data)), draw.randrange(1, 2000)
    gone = len(data[place : place + length])
    return data[:place] + bytes([draw.choice((0, 255))]) * gone + data[place + length :]


def noise(data: bytes, draw: random.Random) -> bytes:
    """Something else under this name, some of it with the right beginning."""
    kept = draw.choice((0, 2, 8, 16, 64))
    return data[:kept] + draw.randbytes(draw.randrange(2000))


def other_number(data: bytes, draw: random.Random) -> bytes:
    """Another number where a text has one."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data[:200_000]))
    if not found:
        return flip(data, draw)
    place = draw.choice(found)
    new = draw.choice(
        (b"-1", b"0", b"1e999", b"nan", b"99999999999999999999", b'"x"', b"null", b"9" * 5000)
    )
    return data[: place.start()] + new + data[place.end() :]


def nest(data: bytes, draw: random.Random) -> bytes:
    """Brackets in brackets, without end or with it."""
    depth = draw.choice((500, 5_000, 100_000))
    left, right = draw.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"{a=", b"}")))
    place = draw.choice((0, draw.randrange(len(data) + 1)))
    inner = left * depth + b"1" + draw.choice((b"", right * depth))
    return data[:place] + inner + data[place:]


BYTES: Sequence[Mutation] = (flip, cut, extend, huge_number, splice, drop, blank, noise)
TEXT: Sequence[Mutation] = (*BYTES, other_number, other_number, nest)


def strange(draw: random.Random) -> Any:
    """A value that nobody expects."""
    nested: Any = 1
    for _ in range(draw.choice((10, 400, 900))):
        nested = [nested]
    return draw.choice(
        (
            None, True, -1, 0, 2**31, 2**63, 10**30, 1e308, float("inf"), float("nan"), "", "x",
            "\x1b[2J[red]", "os:system", "../../etc/passwd", "x" * 100_000, [], {}, [[]],
            list(range(20_000)), {"a": {"b": None}}, nested,
        )
    )  # fmt: skip


def change_value(content: Any, draw: random.Random) -> Any:
    """Replace, drop or repeat something anywhere in a tree of JSON."""
    if not isinstance(content, dict | list) or not content or draw.random() < 0.15:
        return strange(draw)
    if isinstance(content, list):
        place = draw.randrange(len(content))
        kind = draw.random()
        if kind < 0.1:
            return content[:place] + content[place + 1 :]
        if kind < 0.2:
            return content + content[: place + 1] * draw.choice((1, 50))
        return [*content[:place], change_value(content[place], draw), *content[place + 1 :]]
    key = draw.choice(list(content))
    if draw.random() < 0.1:
        return {name: value for name, value in content.items() if name != key}
    if draw.random() < 0.1:
        return content | {str(strange(draw))[:50]: strange(draw)}
    return content | {key: change_value(content[key], draw)}


def change_json(text: bytes | str, draw: random.Random) -> bytes:
    return json.dumps(change_value(json.loads(text), draw)).encode()


def change_line(data: bytes, draw: random.Random) -> bytes:
    """Change the JSON of one line."""
    lines = data.splitlines()
    place = draw.randrange(len(lines))
    lines[place] = change_json(lines[place], draw)
    return b"\n".join(lines) + b"\n"
