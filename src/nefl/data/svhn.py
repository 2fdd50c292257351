"""SVHN's cropped digits as MATLAB files."""

from pathlib import Path

import numpy as np

from nefl.data.arrays import Split, make_split
from nefl.data.catalog import DatasetInfo
from nefl.errors import DataError

_MATLAB_ZERO = 10  # the files count classes from 1: ten stands for the digit 0


def find_mat(root: Path, info: DatasetInfo) -> dict[str, tuple[Path, ...]] | None:
    """`train_32x32.mat` and `test_32x32.mat` in a folder or its usual sub-folders.

    Raises:
        DataError: one is there without the other.
    """
    for folder in (root, *(root / name for name in info.folders)):
        parts = {part: folder / f"{part}_32x32.mat" for part in ("train", "test")}
        absent = [path for path in parts.values() if not path.is_file()]
        if not absent:
            return {part: (path,) for part, path in parts.items()}
        if len(absent) == 1:
            raise DataError(f"{absent[0]}: missing; both train and test are needed")
    return None


def read_mat(path: Path, info: DatasetInfo) -> Split:
    """Read one file: X [32, 32, 3, N] uint8 and y [N, 1] with labels 1 to 10.

    Raises:
        DataError: the file does not parse, or holds other arrays.
    """
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=("X", "y"))
        pixels, labels = content["X"], np.asarray(content["y"])
    except Exception as error:  # scipy raises many kinds for a damaged file
        raise DataError(
            f"{path}: not a complete SVHN file with X and y ({error!r}); fetch it again"
        ) from error
    channels, height, width = info.input_shape
    if (
        pixels.dtype != np.uint8
        or pixels.ndim != 4
        or pixels.shape[:3] != (height, width, channels)
    ):
        raise DataError(
            f"{path}: X is {pixels.dtype} {pixels.shape}, expected uint8 "
            f"({height}, {width}, {channels}, N)"
        )
    if not np.issubdtype(labels.dtype, np.number):
        raise DataError(f"{path}: y is {labels.dtype}, expected numbers")
    digits = labels.ravel().astype(np.int64)
    if (digits < 1).any() or (digits > _MATLAB_ZERO).any():
        row = int(np.argmax((digits < 1) | (digits > _MATLAB_ZERO)))
        raise DataError(f"{path}: row {row} has label {digits[row]}, expected 1 to {_MATLAB_ZERO}")
    images = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    return make_split(images, digits % _MATLAB_ZERO, info.classes, str(path))
