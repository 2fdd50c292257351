"""From any picture to a network's input, safely: sizes are checked before pixels are unpacked."""

import io
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from nefl.artifacts.card import Card
from nefl.data.augment import BatchTransform, Policy, make_transform
from nefl.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
MAX_PIXELS = 40_000_000
"""Larger pictures are refused: a small file can unpack to gigabytes."""


def decode_picture(data: bytes, where: str, card: Card) -> Tensor:
    """Decode a picture and bring it to the size and channels of the training images.

    A photo is turned upright, cut to the training images' proportions around its middle and made
    smaller or larger; a picture of the right size is taken as it is.

    Returns:
        uint8 [C, H, W].

    Raises:
        DataError: if it is no picture, damaged, or too large.
    """
    from PIL import Image, ImageOps

    channels, height, width = card.image_shape
    mode = "L" if channels == 1 else "RGB"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                _check_size(image.size, where)
                image.draft(mode, (width, height))  # a JPEG is then unpacked smaller
                upright = ImageOps.exif_transpose(image)
                flat = _without_alpha(upright).convert(mode)
        if flat.size != (width, height):
            flat = ImageOps.fit(flat, (width, height), Image.Resampling.BILINEAR)
        pixels = np.array(flat, dtype=np.uint8)
    except DataError:
        raise
    except Exception as error:  # decoders raise a dozen unrelated kinds for damaged input
        reason = str(error).split("<")[0].strip() or type(error).__name__
        raise DataError(
            f"{where}: is no picture that can be read ({reason}); give a PNG, JPEG, WebP or BMP"
        ) from None
    plain = torch.from_numpy(pixels)
    return plain[None] if channels == 1 else plain.permute(2, 0, 1).contiguous()


def _check_size(size: tuple[int, int], where: str) -> None:
    if size[0] * size[1] > MAX_PIXELS:
        raise DataError(
            f"{where}: has {size[0]}x{size[1]} pixels, at most {MAX_PIXELS // 10**6} million are "
            "taken; make it smaller"
        )


def _without_alpha(image: "PillowImage") -> "PillowImage":
    """Lay a picture with transparency on white, as people see it."""
    from PIL import Image

    if "A" not in image.getbands() and "transparency" not in image.info:
        return image
    coloured = image.convert("RGBA")
    white = Image.new("RGBA", coloured.size, "white")
    return Image.alpha_composite(white, coloured)


def input_transform(card: Card) -> BatchTransform:
    """Return what turns uint8 images [N, C, H, W] into the network's float32 inputs."""
    plain = make_transform("none", card.mean, card.std, card.image_shape, train=False)
    if card.input_shape == card.image_shape:
        return plain
    return replace(plain, policy=Policy(crop=card.input_shape[1]))
