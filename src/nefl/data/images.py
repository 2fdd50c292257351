"""Encoded images: decoding their bytes, and folders of them (`train/<class>/*.png`)."""

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from nefl.data.arrays import Images, Shape, Split, make_split
from nefl.errors import DataError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
# Only the decoders that these data sets need: the others are so much more surface to attack.
_PILLOW_FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
MAX_PIXELS = 40_000_000
"""Larger images are refused: a small file can unpack to gigabytes."""
_GREY_MODES = ("1", "L", "LA")
_MODES = (*_GREY_MODES, "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def decode_images(
    items: Iterable[tuple[str, bytes]], count: int, shape: Shape | None, channels: int | None = None
) -> Images:
    """Decode encoded images into one array.

    Args:
        items: where each image comes from (for messages), and its bytes.
        count: how many items there are.
        shape: (C, H, W) that every image must have; None takes the first image's size.
        channels: 1 or 3, when `shape` is None; None takes the first image's.

    Returns:
        uint8 [count, C, H, W].

    Raises:
        DataError: an image does not decode, or has another size.
    """
    out = np.empty((count, *shape), np.uint8) if shape else None
    for row, (where, data) in enumerate(items):
        pixels = _decode(data, where, out.shape[1:] if out is not None else None, channels)
        if out is None:
            out = np.empty((count, *pixels.shape), np.uint8)
        out[row] = pixels
    return out if out is not None else np.empty((0, 0, 0, 0), np.uint8)


def _decode(data: bytes, where: str, shape: tuple[int, ...] | None, channels: int | None) -> Images:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=_PILLOW_FORMATS) as image:
            # Size and mode stand in the header: a huge image is refused before it is unpacked.
            _check_header(image.size, image.mode, where, shape)
            wanted = shape[0] if shape else channels or (1 if image.mode in _GREY_MODES else 3)
            mode = "L" if wanted == 1 else "RGB"
            pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    except DataError:
        raise
    except Exception as error:  # decoders raise a dozen unrelated kinds for damaged input
        raise DataError(
            f"{where}: the image does not decode ({error}); fetch the file again"
        ) from error
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _check_header(
    size: tuple[int, int], mode: str, where: str, shape: tuple[int, ...] | None
) -> None:
    if shape is not None and size != (shape[2], shape[1]):
        raise DataError(
            f"{where}: image of {size[0]}x{size[1]} pixels, expected {shape[2]}x{shape[1]}; "
            "all images of a data set must have one size"
        )
    if size[0] * size[1] > MAX_PIXELS:
        raise DataError(
            f"{where}: image of {size[0]}x{size[1]} pixels, at most {MAX_PIXELS // 10**6} million "
            "are taken; make it smaller"
        )
    if mode not in _MODES:
        raise DataError(f"{where}: image mode {mode}; convert it to 8 bits a channel")


def class_folders(folder: Path) -> tuple[str, ...]:
    """Names of the class folders below one part of an image folder, in label order.

    Names that are all numbers are ordered as numbers, others alphabetically.
    """
    names = [entry.name for entry in folder.iterdir() if entry.is_dir()]
    numeric = all(name.isdecimal() for name in names)
    return tuple(sorted(names, key=int) if numeric else sorted(names))


def list_images(folder: Path) -> list[Path]:
    """The image files directly below a class folder, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)


def read_image_folder(
    folder: Path,
    class_names: tuple[str, ...],
    shape: Shape | None,
    channels: int | None = None,
    *,
    partial: bool = False,
) -> Split:
    """Read one part (`train` or `test`) of an image folder.

    Args:
        folder: it has a folder for each class.
        class_names: their names in label order.
        shape: (C, H, W) that every image must have; None takes the first image's size.
        channels: 1 or 3, when `shape` is None; None takes the first image's.
        partial: whether some classes may have no folder.

    Raises:
        DataError: the class folders are not the expected ones, one is empty, or an image is bad.
    """
    found = class_folders(folder)
    missing = sorted(set(class_names) - set(found))
    extra = sorted(set(found) - set(class_names))
    if extra or (missing and not partial):
        raise DataError(
            f"{folder}: expected one folder for each of {len(class_names)} classes; "
            f"missing {missing}, unexpected {extra}"
        )
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(class_names):
        if name in missing:
            continue
        images = list_images(folder / name)
        if not images:
            raise DataError(f"{folder / name}: no image ({', '.join(IMAGE_SUFFIXES)}) in it")
        paths += images
        labels += [label] * len(images)
    items = ((str(path), path.read_bytes()) for path in paths)
    images_array = decode_images(items, len(paths), shape, channels)
    return make_split(images_array, labels, len(class_names), str(folder))
