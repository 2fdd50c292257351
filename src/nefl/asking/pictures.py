"""From any picture to a network's input, in bounded memory: what a header announces is weighed
before pixels are unpacked, and a large picture is made small strip by strip.
"""

import io
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from nefl.artifacts.card import Card
from nefl.asking.way import Answers, Run, Wish, check_scales, misfit, read_facts, tell_classes
from nefl.data.arrays import Shape
from nefl.data.augment import BatchTransform, Policy, make_transform
from nefl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

FORMATS = ("PNG", "JPEG", "WEBP", "BMP")

MAX_PIXELS = 64_000_000
"""Larger pictures are refused: a small file can unpack to gigabytes."""

MAX_SIDE = 4096
"""Pixels of a side of the images that a model was trained on."""

MAX_DECODED = 256 * 2**20
"""Bytes that a picture may take while it is unpacked. A camera's JPEG takes a few million, as it is
unpacked smaller; a PNG of 64 million pixels or a WebP of 15 million takes nearly all."""

MAX_SCANS = 64
"""Passes over a JPEG: each goes over all pixels, however few bytes it has. Cameras write ten."""

SMALL_PIXELS, SMALL_DECODED = 4_000_000, 16 * 2**20
"""Up to so many pixels and bytes a picture costs next to nothing."""

_SCAN = b"\xff\xda"
_STRIP = 1_000_000
"""Pixels of a strip, or a little more; a picture that has no more is taken as it is."""
_SPARE = 4
"""So many times the wanted side is left by the strips, or a little more."""


@dataclass(frozen=True)
class PictureFacts:
    """What a card says of pictures.

    Attributes:
        image_shape: (C, H, W) of the images it was trained on, to which others are brought first.
        mean: of each channel of pixel / 255; input = (pixel / 255 - mean) / std.
        std: likewise.
    """

    image_shape: Shape
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse what no picture could be brought to."""
        channels, *sides = self.image_shape
        if channels not in (1, 3):
            raise ConfigError(f"image_shape {self.image_shape}: files hold grey or RGB models")
        if min(sides) < 1 or max(sides) > MAX_SIDE:
            raise ConfigError(f"image_shape {self.image_shape}: give 1 to {MAX_SIDE} pixels")
        check_scales(self.mean, self.std, channels)


class Pictures:
    """Asked about pictures, it says what is in them."""

    noun = "picture"
    takes = "PNG, JPEG, WebP or BMP"
    example = ""

    def __init__(self, card: Card, facts: PictureFacts) -> None:
        inputs, channels = card.signature.input_shape, facts.image_shape[0]
        if len(inputs) != 3 or inputs[0] != channels or not card.class_names:
            raise misfit(card, f"images {facts.image_shape} for inputs {card.signature.shown}")
        self._card, self._shape = card, facts.image_shape
        self._transform = input_transform(card)

    def is_large(self, data: bytes, where: str) -> bool:
        """Whether a picture should wait for its turn before it is unpacked."""
        return is_large(data, where, self._shape)

    def ask(self, data: bytes, where: str, run: Run, wish: Wish, *, is_json: bool) -> Answers:  # noqa: ARG002
        """Say what is in a picture."""
        inputs = self._transform(decode_picture(data, where, self._shape)[None])
        return Answers(tuple(tell_classes(run(inputs), self._card.class_names)))


def input_transform(card: Card) -> BatchTransform:
    """Return what turns uint8 images [N, C, H, W] into the network's float32 inputs.

    Raises:
        RunError: if the card says nothing of images.
    """
    facts = read_facts(card, PictureFacts)
    if facts is None:
        raise misfit(card, "it says nothing of images")
    plain = make_transform("none", facts.mean, facts.std, facts.image_shape, train=False)
    if card.signature.input_shape == facts.image_shape:
        return plain
    return replace(plain, policy=Policy(crop=card.signature.input_shape[1]))


@dataclass(frozen=True, eq=False)
class _Opened:
    """A picture of which only the header was read.

    Attributes:
        image: as it will be unpacked, a JPEG smaller than it is.
        pixels: how many it really has.
        needed: bytes that it takes while it is unpacked.
    """

    image: "PillowImage"
    pixels: int
    needed: int


def decode_picture(data: bytes, where: str, shape: Shape) -> Tensor:
    """Decode a picture and bring it to the size and channels of the training images.

    A photo is turned upright, cut to the training images' proportions around its middle and made
    smaller or larger; a picture of the right size is taken as it is.

    Returns:
        uint8 [C, H, W].

    Raises:
        DataError: if it is no picture, damaged, or too large.
    """
    from PIL import Image, ImageOps

    _, height, width = shape
    try:
        with _open(data, where, shape).image as image:
            upright = ImageOps.exif_transpose(_shrink(image, shape))
        flat = _flat(upright, shape)
        if flat.size != (width, height):
            flat = ImageOps.fit(flat, (width, height), Image.Resampling.BILINEAR)
        pixels = np.array(flat, dtype=np.uint8)
    except DataError:
        raise
    except Exception as error:  # decoders raise a dozen unrelated kinds for damaged input
        raise _unreadable(where, error) from None
    plain = torch.from_numpy(pixels)
    return plain[None] if plain.ndim == 2 else plain.permute(2, 0, 1).contiguous()


def is_large(data: bytes, where: str, shape: Shape) -> bool:
    """Whether a picture costs so much to unpack that it should wait for its turn.

    Raises:
        DataError: if it is no picture, or too large to be unpacked at all.
    """
    try:
        opened = _open(data, where, shape)
    except DataError:
        raise
    except Exception as error:
        raise _unreadable(where, error) from None
    return opened.needed > SMALL_DECODED or opened.pixels > SMALL_PIXELS


def _open(data: bytes, where: str, shape: Shape) -> _Opened:
    """Read a header, and refuse what would take too much."""
    from PIL import Image

    _, height, width = shape
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    full, coefficients = image.width * image.height, len(image.getbands())
    image.draft(_mode(shape), (width, height))
    needed = _needed(image, full, coefficients)
    if full > MAX_PIXELS or needed > MAX_DECODED:
        most = min(MAX_PIXELS, full * MAX_DECODED // needed) / 1e6
        raise DataError(
            f"{where}: has {full / 1e6:.0f} million pixels, at most {most:.0f} million are taken "
            f"of such a {image.format}; make it smaller"
        )
    if image.format in ("JPEG", "MPO") and data.count(_SCAN) > MAX_SCANS:
        raise DataError(
            f"{where}: has more than {MAX_SCANS} scans, which no camera writes; save it again as "
            "a plain JPEG"
        )
    return _Opened(image, full, needed)


def _needed(image: "PillowImage", full: int, coefficients: int) -> int:
    """Return the bytes that a picture takes while it is unpacked.

    Args:
        image: as it will be unpacked.
        full: the pixels it really has.
        coefficients: what a JPEG holds for each of them.
    """
    if image.format == "WEBP":
        return 17 * full  # measured: canvases, the decoder's own picture and ours
    unpacked = (1 if image.mode in ("1", "L", "P") else 4) * image.width * image.height
    if "progressive" in image.info:  # all coefficients are kept until the last scan
        return 2 * coefficients * full + unpacked
    return unpacked


def _unreadable(where: str, error: Exception) -> DataError:
    reason = str(error).split("<")[0].strip() or type(error).__name__
    return DataError(
        f"{where}: is no picture that can be read ({reason}); give a PNG, JPEG, WebP or BMP"
    )


def _mode(shape: Shape) -> str:
    return "L" if shape[0] == 1 else "RGB"


def _flat(image: "PillowImage", shape: Shape) -> "PillowImage":
    """Lay a picture with transparency on white, as people see it; give it the model's channels."""
    from PIL import Image

    if "A" in image.getbands() or "transparency" in image.info:
        coloured = image.convert("RGBA")
        white = Image.new("RGBA", coloured.size, "white")
        image = Image.alpha_composite(white, coloured)
    return image.convert(_mode(shape))


def _shrink(image: "PillowImage", shape: Shape) -> "PillowImage":
    """Return a large picture's middle, smaller by a whole number; a small picture as it is.

    A copy of the whole in another mode would take as much as the picture itself, so strips are
    taken one after the other.
    """
    from PIL import Image

    if image.width * image.height <= _STRIP:
        return image
    width, height = _kept(image.size, shape)
    factor = max(1, min(width, height) // (_SPARE * max(shape[1:])))
    columns, rows = width // factor, height // factor
    left, top = (image.width - columns * factor) // 2, (image.height - rows * factor) // 2
    small = Image.new(_mode(shape), (columns, rows))
    step = max(1, _STRIP // (columns * factor * factor))
    for row in range(0, rows, step):
        upper, lower = top + row * factor, top + min(rows, row + step) * factor
        strip = image.crop((left, upper, left + columns * factor, lower))
        small.paste(_flat(strip, shape).reduce(factor), (0, row))
    if "exif" in image.info:  # how it is to be turned
        small.info["exif"] = image.info["exif"]
    return small


def _kept(size: tuple[int, int], shape: Shape) -> tuple[int, int]:
    """Return width and height of the middle that holds all that is kept, turned or not."""
    width, height = size
    sides = shape[1:]
    ratio = max(sides) / min(sides)
    return min(width, math.ceil(height * ratio)), min(height, math.ceil(width * ratio))
