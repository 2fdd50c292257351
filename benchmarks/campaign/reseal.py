"""Files that lie consistently: contents changed, with the checksums of what they then hold."""

import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from safetensors.torch import save

from benchmarks.campaign.mutations import BYTES, change_json
from nefl.artifacts import programfile
from nefl.artifacts.card import CARD_KEY
from nefl.elastic.file import checksum
from nefl.export import onnxfile


def tensors(data: bytes, draw: random.Random) -> bytes:
    """Another card, other notes or other tensors in a safetensors file of nefl's."""
    with io.BytesIO(data) as file:
        (length,) = struct.unpack("<Q", file.read(8))
        metadata = json.loads(file.read(length))["__metadata__"]
    found = _loaded(data)
    kind = draw.randrange(4)
    if kind == 0 and CARD_KEY in metadata:
        metadata[CARD_KEY] = change_json(metadata[CARD_KEY], draw).decode()
    elif kind == 1:
        key = draw.choice(sorted(metadata))
        metadata[key] = draw.choice(("", "-1", "9" * 5000, "\x1b[2J", "x" * 10**6, "nan"))
        return save(found, metadata)
    else:
        name = draw.choice(sorted(found))
        changes = (
            found[name].double(), found[name].half(), found[name].reshape(-1)[:1],
            torch.zeros(0), torch.full((3, 3), float("nan")), torch.zeros(2, 2, dtype=torch.bool),
        )  # fmt: skip
        found[name] = draw.choice(changes).contiguous().clone()
        if draw.random() < 0.3:
            found[draw.choice(("", "x", "shared/x", "submodel/99/x"))] = found.pop(name)
    if "sha256" in metadata:
        metadata["sha256"] = checksum(found, metadata.get(CARD_KEY, ""))
    return save(found, metadata)


def _loaded(data: bytes) -> dict[str, torch.Tensor]:
    from safetensors.torch import load

    return load(data)


def onnx_card(data: bytes, draw: random.Random) -> bytes:
    import onnx

    model = onnx.ModelProto.FromString(_onnx_content(data))
    (entry,) = model.metadata_props
    entry.value = change_json(entry.value, draw).decode()
    return onnxfile.seal(model.SerializeToString())


def onnx_graph(data: bytes, draw: random.Random) -> bytes:
    return onnxfile.seal(draw.choice(BYTES)(_onnx_content(data), draw))


def _onnx_content(data: bytes) -> bytes:
    return data[: -onnxfile.SEAL_BYTES]


def pte_card(data: bytes, draw: random.Random) -> bytes:
    program, text = _pte_parts(data)
    return programfile.seal(program, change_json(text, draw))


def pte_program(data: bytes, draw: random.Random) -> bytes:
    program, text = _pte_parts(data)
    return programfile.seal(program[:8] + draw.choice(BYTES)(program[8:], draw), text)


def _pte_parts(data: bytes) -> tuple[bytes, bytes]:
    size = programfile.TRAILER.size
    length = programfile.TRAILER.unpack(data[-size:])[0]
    return data[: -size - length], data[-size - length : -size]


def archive(data: bytes, draw: random.Random) -> bytes:
    """Other JSON or other bytes in a member of a .pt2 archive."""

    def change(name: str, content: bytes) -> bytes:
        if name.endswith((".json", CARD_KEY)):
            return change_json(content, draw)
        return draw.choice(BYTES)(content, draw) if content else draw.randbytes(50)

    return _rezipped(data, draw, change)


def arrays(data: bytes, draw: random.Random) -> bytes:
    """Other headers, other values or a bomb in a .npz file."""

    def change(_: str, content: bytes) -> bytes:
        kind = draw.randrange(4)
        if kind == 0:
            return _npy(b"(99999999999, 999)", content)
        if kind == 1:
            return _npy(draw.choice((b"(-1,)", b"()", b"'x'", b"__import__('os')")), content)
        if kind == 2:
            out = io.BytesIO()
            np.save(out, np.array([draw.choice((2**62, -1, 10**9))] * 20))
            return out.getvalue()
        return draw.choice(BYTES)(content, draw)

    return _rezipped(data, draw, change, zipfile.ZIP_DEFLATED)


def array_bomb(data: bytes, _: random.Random) -> bytes:
    """A quarter of a megabyte that unpacks to a quarter of a gigabyte."""
    return _array_bomb(data)


@cache
def _array_bomb(data: bytes) -> bytes:
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as old,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new,
    ):
        for name in old.namelist():
            if name != "x_train.npy":
                new.writestr(name, old.read(name))
        with new.open("x_train.npy", "w") as member:
            member.write(_npy(b"(256, 1024, 1024)", b""))
            for _ in range(256):
                member.write(bytes(2**20))
    return out.getvalue()


def _npy(shape: bytes, content: bytes) -> bytes:
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': " + shape + b", }\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content[128:]


def _rezipped(
    data: bytes,
    draw: random.Random,
    change: Callable[[str, bytes], bytes],
    packing: int = zipfile.ZIP_STORED,
) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", packing) as new:
        chosen = draw.choice(old.namelist())
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, change(name, content) if name == chosen else content)
    return out.getvalue()


def png(data: bytes, draw: random.Random) -> bytes:
    """Another header with its checksum: sizes that would unpack to gigabytes, odd depths."""
    side = draw.choice((0, 1, 33, 6000, 20_000, 2**31 - 1))
    depth, colour = draw.choice((1, 2, 8, 16, 99)), draw.choice((0, 2, 3, 4, 6, 9))
    header = b"IHDR" + struct.pack(
        ">IIBBBBB", side, draw.choice((side, 32)), depth, colour, 0, 0, 0
    )
    start = data[:12] + header + struct.pack(">I", zlib.crc32(header))
    if draw.random() < 0.5:
        return start + data[33:]
    body = b"IDAT" + _zeros()
    return start + struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))


@cache
def _zeros() -> bytes:
    return zlib.compress(bytes(2**26))


def pth(data: bytes, draw: random.Random) -> bytes:
    """Other bytes in a member of a torch file, its pickle among them."""
    return _rezipped(data, draw, lambda _, c: draw.choice(BYTES)(c, draw) if c else c)
