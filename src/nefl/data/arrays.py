"""Images and their labels: what readers produce, the checks, and the columns they become."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nefl.data.columns import Examples
from nefl.errors import DataError

Images = npt.NDArray[np.uint8]  # [N, C, H, W]
Labels = npt.NDArray[np.int64]  # [N]
Shape = tuple[int, int, int]  # (C, H, W)

IMAGE, LABEL = "image", "label"
"""The columns of images: uint8 [C, H, W] and int64."""

_MAX_CHANNELS = 4
_STATISTICS_CHUNK = (
    1024  # images; bincount widens to int64, so whole sets would cost 8 bytes a pixel
)


@dataclass(frozen=True, eq=False)
class Split:
    """The train or the test part of a data set.

    Attributes:
        images: uint8 [N, C, H, W]; may be a read-only memory map.
        labels: int64 [N].
    """

    images: Images
    labels: Labels

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Decoded:
    """What a reader makes of its source, still in ordinary memory."""

    train: Split
    test: Split
    class_names: tuple[str, ...]


def make_split(images: Images, labels: npt.ArrayLike, classes: int | None, source: str) -> Split:
    """Pair images with labels and check them.

    Args:
        images: uint8 [N, C, H, W].
        labels: N whole numbers.
        classes: number of classes, or None when only negative labels are wrong.
        source: the file or function at fault if a check fails.

    Raises:
        DataError: lengths differ, or a label is not a class.
    """
    given = np.asarray(labels)
    if given.ndim != 1 or (given.size and not np.issubdtype(given.dtype, np.integer)):
        raise DataError(
            f"{source}: labels are {given.dtype} of shape {given.shape}; "
            "expected one whole number for each image"
        )
    if len(given) != len(images):
        raise DataError(f"{source}: {len(images)} images but {len(given)} labels")
    checked = given.astype(np.int64)
    wrong = checked < 0 if classes is None else (checked < 0) | (checked >= classes)
    if wrong.any():
        row = int(np.argmax(wrong))
        expected = "0 or more" if classes is None else f"0 to {classes - 1}"
        raise DataError(f"{source}: row {row} has label {checked[row]}, expected {expected}")
    return Split(images, checked)


def join(splits: Sequence[Split]) -> Split:
    """Concatenate the splits of several files, in order."""
    if len(splits) == 1:
        return splits[0]
    return Split(
        np.concatenate([split.images for split in splits]),
        np.concatenate([split.labels for split in splits]),
    )


def as_images(array: npt.NDArray[np.generic], source: str) -> Images:
    """Bring a user's array to uint8 [N, C, H, W], C-contiguous.

    [N, H, W] is grey; the channel axis (1 to 4 long) may come second or last.

    Raises:
        DataError: another dtype or number of axes, or no axis that can be the channels.
    """
    if array.dtype != np.uint8:
        raise DataError(
            f"{source}: images are {array.dtype}, expected uint8 with values 0 to 255; "
            "scale and convert them first (normalisation happens later)"
        )
    images = array[:, None] if array.ndim == 3 else array
    if images.ndim != 4:
        raise DataError(
            f"{source}: images have shape {array.shape}, expected [N, C, H, W], [N, H, W, C] "
            "or [N, H, W]"
        )
    if not 1 <= images.shape[1] <= _MAX_CHANNELS:
        if not 1 <= images.shape[3] <= _MAX_CHANNELS:
            raise DataError(
                f"{source}: images have shape {array.shape}; expected 1 to {_MAX_CHANNELS} "
                "channels as the second or the last axis"
            )
        images = images.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(images).astype(np.uint8, copy=False)


def check_decoded(decoded: Decoded, source: str) -> None:
    """Refuse a data set whose parts are empty or do not fit each other.

    Raises:
        DataError: a part is empty, image shapes differ, or a label has no class name.
    """
    for part, split in (("train", decoded.train), ("test", decoded.test)):
        if not len(split) or not split.images.size:
            raise DataError(f"{source}: the {part} part is empty")
        if int(split.labels.max()) >= len(decoded.class_names):
            raise DataError(
                f"{source}: {part} label {int(split.labels.max())} is outside the "
                f"{len(decoded.class_names)} classes"
            )
    train, test = decoded.train.images.shape[1:], decoded.test.images.shape[1:]
    if train != test:
        raise DataError(f"{source}: training images are {train}, test images {test} (C, H, W)")


def image_examples(decoded: Decoded, source: str) -> Examples:
    """Return images and labels as columns, with all that is known of them besides.

    Raises:
        DataError: if the parts are empty or do not fit each other.
    """
    check_decoded(decoded, source)
    mean, std = channel_statistics(decoded.train.images)
    return Examples(
        {IMAGE: decoded.train.images, LABEL: decoded.train.labels},
        {IMAGE: decoded.test.images, LABEL: decoded.test.labels},
        {"class_names": list(decoded.class_names), "mean": list(mean), "std": list(std)},
    )


def channel_statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of pixel / 255.

    Counted as integers, so that the result does not depend on the order of summation.
    """
    channels = images.shape[1]
    counts = np.zeros((channels, 256), np.int64)
    for start in range(0, len(images), _STATISTICS_CHUNK):
        chunk = images[start : start + _STATISTICS_CHUNK]
        for channel in range(channels):
            counts[channel] += np.bincount(chunk[:, channel].ravel(), minlength=256)
    values = np.arange(256, dtype=np.int64)
    pixels = counts.sum(axis=1)
    mean = (counts @ values) / pixels
    variance = (counts @ values**2) / pixels - mean**2
    std = np.sqrt(np.maximum(variance, 0.0))
    return tuple((mean / 255).tolist()), tuple((std / 255).tolist())
