"""Pictures are brought to the training images' size; bombs and rubbish are refused."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import nefl
from nefl.artifacts.card import Card
from nefl.elastic.inputs import decode_picture, input_transform
from nefl.errors import DataError
from nefl.export.source import open_run


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


@pytest.fixture
def card(elastic_file: Path) -> Card:
    return nefl.load(elastic_file).card


def test_a_test_image_comes_out_as_the_network_was_tested(digits_run: Path, card: Card) -> None:
    source = open_run(digits_run)
    image = source.setting.dataset.test.images[0]
    pixels = decode_picture(encoded(Image.fromarray(image[0])), "x", card)
    assert torch.equal(pixels, torch.from_numpy(np.array(image)))
    wanted = source._inputs(np.array(image[None]))
    assert torch.equal(input_transform(card)(pixels[None]), wanted)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "LA", "1", "L"])
def test_any_mode_and_size_is_brought_to_shape(card: Card, mode: str) -> None:
    assert decode_picture(encoded(Image.new(mode, (50, 31))), "x", card).shape == (1, 8, 8)
    jpeg = encoded(Image.new("RGB", (640, 480), "red"), "JPEG")
    assert decode_picture(jpeg, "x", card).shape == (1, 8, 8)


def test_transparency_lies_on_white(card: Card) -> None:
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    assert decode_picture(encoded(clear), "x", card).min() == 255


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few hundred bytes that claims to be huge."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = zlib.compress(b"\0" * 100_000)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"\x89PNG\r\n\x1a\n",
        bomb(60_000, 60_000),
        bomb(8000, 6000),
        b"GIF89a" + b"\0" * 50,
    ],
)
def test_rubbish_and_bombs_are_refused_by_name(card: Card, data: bytes) -> None:
    with pytest.raises(DataError, match="photo.png: "):
        decode_picture(data, "photo.png", card)


def test_a_cut_off_picture_is_refused(card: Card) -> None:
    whole = encoded(Image.effect_noise((64, 64), 90))
    with pytest.raises(DataError, match="no picture that can be read"):
        decode_picture(whole[: len(whole) // 2], "x", card)
