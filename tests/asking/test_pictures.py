"""Pictures are brought to the training images' size; bombs and rubbish are refused."""

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import nefl
from nefl.artifacts.card import Card
from nefl.asking.pictures import decode_picture, input_transform, is_large
from nefl.asking.way import read_file
from nefl.errors import DataError
from nefl.export.source import open_run

SHAPE = (1, 8, 8)


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


@pytest.fixture
def card(elastic_file: Path) -> Card:
    return nefl.load(elastic_file).card


def test_a_test_image_comes_out_as_the_network_was_tested(digits_run: Path, card: Card) -> None:
    task = open_run(digits_run).setting.task
    image = task.test["image"][0]
    pixels = decode_picture(encoded(Image.fromarray(image[0])), "x", SHAPE)
    assert torch.equal(pixels, torch.from_numpy(np.array(image)))
    wanted = task.make_inputs({"image": torch.from_numpy(np.array(image[None]))})
    assert torch.equal(input_transform(card)(pixels[None]), wanted)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "LA", "1", "L"])
def test_any_mode_and_size_is_brought_to_shape(mode: str) -> None:
    assert decode_picture(encoded(Image.new(mode, (50, 31))), "x", SHAPE).shape == (1, 8, 8)
    jpeg = encoded(Image.new("RGB", (640, 480), "red"), "JPEG")
    assert decode_picture(jpeg, "x", SHAPE).shape == (1, 8, 8)


def test_transparency_lies_on_white() -> None:
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    assert decode_picture(encoded(clear), "x", SHAPE).min() == 255


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
def test_rubbish_and_bombs_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(DataError, match="photo.png: "):
        decode_picture(data, "photo.png", SHAPE)


def photo(mode: str, size: tuple[int, int]) -> Image.Image:
    """Something with large shapes in it, and transparent on one side where the mode has that."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (6, 8, 4), dtype=np.uint8)
    pixels[:, :4, 3], pixels[:, 4:, 3] = 255, 60
    return Image.fromarray(pixels, "RGBA").resize(size).convert(mode)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "LA"])
@pytest.mark.parametrize("size", [(1400, 900), (900, 1401), (300_000, 8)])
def test_a_large_picture_comes_out_as_if_it_were_taken_whole(
    monkeypatch: pytest.MonkeyPatch, mode: str, size: tuple[int, int]
) -> None:
    data = encoded(photo(mode, size))
    in_strips = decode_picture(data, "x", SHAPE)
    monkeypatch.setattr("nefl.asking.pictures._STRIP", 10**9)
    whole = decode_picture(data, "x", SHAPE)
    assert (in_strips.int() - whole.int()).abs().max() <= 8


def test_a_turned_photo_is_turned_back_also_in_strips() -> None:
    image = photo("RGB", (1600, 1200))
    exif = Image.Exif()
    exif[0x0112] = 6
    out = io.BytesIO()
    image.save(out, "PNG", exif=exif)
    turned = decode_picture(out.getvalue(), "x", SHAPE)
    plain = decode_picture(encoded(image.rotate(-90, expand=True)), "x", SHAPE)
    assert (turned.int() - plain.int()).abs().max() <= 8


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
def test_a_camera_s_photo_of_twelve_megapixels_is_taken(kind: str) -> None:
    photo_ = encoded(Image.new("RGB", (4000, 3000), "red"), kind)
    assert is_large(photo_, "x", SHAPE)
    assert decode_picture(photo_, "x", SHAPE).shape == (1, 8, 8)


def test_many_scans_are_refused_before_they_are_decoded() -> None:
    data = encoded(Image.new("RGB", (640, 480), "red"), "JPEG")
    with pytest.raises(DataError, match="scans"):
        decode_picture(data + b"\xff\xda" * 100, "x", SHAPE)


@pytest.mark.parametrize(
    ("kind", "options"), [("WEBP", {}), ("JPEG", {"progressive": True, "subsampling": 0})]
)
def test_formats_that_take_more_for_a_pixel_may_have_fewer(
    monkeypatch: pytest.MonkeyPatch, kind: str, options: dict[str, object]
) -> None:
    out = io.BytesIO()
    Image.new("RGB", (1000, 1000)).save(out, kind, **options)
    monkeypatch.setattr("nefl.asking.pictures.MAX_DECODED", 5_000_000)
    with pytest.raises(DataError, match=rf"at most \d million are taken of such a {kind}"):
        decode_picture(out.getvalue(), "x", SHAPE)
    assert decode_picture(encoded(Image.new("RGB", (1000, 1000)), "PNG"), "x", SHAPE).numel()


PEAK = """
import re, sys
from pathlib import Path
from nefl.asking.pictures import decode_picture
SHAPE = (1, 8, 8)
decode_picture(Path(sys.argv[2]).read_bytes(), "x", SHAPE)
Path("/proc/self/clear_refs").write_text("5")
def status(field):
    return int(re.findall(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[0])
before = status("VmRSS")
decode_picture(Path(sys.argv[1]).read_bytes(), "x", SHAPE)
print(status("VmHWM") - before)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_a_bomb_takes_its_pixels_once(tmp_path: Path) -> None:
    (tmp_path / "bomb.png").write_bytes(encoded(Image.new("RGBA", (8000, 5000), (9, 9, 9, 9))))
    (tmp_path / "small.png").write_bytes(encoded(Image.new("RGBA", (80, 50))))
    files = str(tmp_path / "bomb.png"), str(tmp_path / "small.png")
    command = [sys.executable, "-c", PEAK, *files]
    kilobytes = int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert kilobytes < 8000 * 5000 * 4 * 1.2 / 1024


def test_files_that_are_no_pictures_are_not_read_for_ever(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="more than 64 MiB"):
        read_file(Path("/dev/zero"))
    with pytest.raises(DataError, match=r"none\.png: cannot be read"):
        read_file(tmp_path / "none.png")


def test_a_cut_off_picture_is_refused() -> None:
    whole = encoded(Image.effect_noise((64, 64), 90))
    with pytest.raises(DataError, match="no picture that can be read"):
        decode_picture(whole[: len(whole) // 2], "x", SHAPE)
