"""CIFAR's official batches, binary and pickled; the pickles are read without trusting them."""

import math
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nefl.data.arrays import Images, Split, make_split
from nefl.data.catalog import DatasetInfo
from nefl.errors import DataError

_PARTS: Mapping[int, Mapping[str, tuple[str, ...]]] = {
    10: {"train": tuple(f"data_batch_{n}" for n in range(1, 6)), "test": ("test_batch",)},
    100: {"train": ("train",), "test": ("test",)},
}
# CIFAR-100's binary rows start with the coarse label; the fine one follows.
_LABEL_BYTES = {10: 1, 100: 2}


def find_batches(root: Path, info: DatasetInfo) -> dict[str, tuple[Path, ...]] | None:
    """Official batch files of each part, pickled or binary (`.bin`).

    Returns:
        None when the folder and its usual sub-folders hold no batch at all.

    Raises:
        DataError: some batches are there and one is missing.
    """
    for folder in (root, *(root / name for name in info.folders)):
        for suffix in ("", ".bin"):
            parts = {
                part: tuple(folder / f"{name}{suffix}" for name in names)
                for part, names in _PARTS[info.classes].items()
            }
            files = [path for paths in parts.values() for path in paths]
            absent = [path for path in files if not path.is_file()]
            if not absent:
                return parts
            if len(absent) < len(files):
                raise DataError(f"{absent[0]}: missing beside {len(files) - len(absent)} others")
    return None


def read_batch(path: Path, info: DatasetInfo) -> Split:
    """Read one batch file.

    Raises:
        DataError: the file is truncated, is no batch, or its pickle asks for anything unusual.
    """
    return _read_binary(path, info) if path.suffix == ".bin" else _read_pickle(path, info)


def _read_binary(path: Path, info: DatasetInfo) -> Split:
    label_bytes = _LABEL_BYTES[info.classes]
    row_bytes = label_bytes + math.prod(info.input_shape)
    size = path.stat().st_size
    if size == 0 or size % row_bytes:
        raise DataError(
            f"{path}: {size} bytes, expected a multiple of {row_bytes}; "
            "the file is truncated or not a CIFAR binary batch: fetch it again"
        )
    rows = np.fromfile(path, np.uint8).reshape(-1, row_bytes)
    images = rows[:, label_bytes:].reshape(-1, *info.input_shape)
    return make_split(images, rows[:, label_bytes - 1], info.classes, str(path))


def _read_pickle(path: Path, info: DatasetInfo) -> Split:
    try:
        with path.open("rb") as file:
            # Written by Python 2: its str are bytes, and decoding the pixels would spoil them.
            batch = _BatchUnpickler(file, path).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(f"{path}: not a complete CIFAR batch ({error}); fetch it again") from error
    data = _entry(path, batch, "data")
    labels = _entry(path, batch, "fine_labels" if info.classes == 100 else "labels")
    if not isinstance(data, _PickledArray) or not isinstance(labels, list):
        raise DataError(f"{path}: expected an array `data` and a list of labels")
    if not all(type(label) is int for label in labels):
        raise DataError(f"{path}: labels must be whole numbers")
    return make_split(data.images(path, info), labels, info.classes, str(path))


def _entry(path: Path, batch: object, key: str) -> object:
    if isinstance(batch, dict):
        for name in (key.encode(), key):
            if name in batch:
                return batch[name]
    raise DataError(f"{path}: no entry {key!r}; is this a batch of another data set?")


class _BatchUnpickler(pickle.Unpickler):
    """Builds only plain values and stand-ins for arrays; any other name in the pickle is refused.

    Even NumPy is kept out: the stand-ins record what the pickle says, and it is checked before
    an array is made of it.
    """

    def __init__(self, file: Any, path: Path) -> None:
        super().__init__(file, encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _PERMITTED[f"{module}.{name}"]
        except KeyError:
            raise DataError(
                f"{self._path}: the pickle asks for {module}.{name}, which no CIFAR batch needs; "
                "do not trust this file, fetch it again from its official place"
            ) from None


class _PickledDtype:
    def __init__(self, code: bytes | str, *_: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like: without meaning for single bytes."""


class _PickledArray:
    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def images(self, path: Path, info: DatasetInfo) -> Images:
        """The recorded array as uint8 [N, C, H, W]."""
        pixels = math.prod(info.input_shape)
        match self.state:
            case (_, (int() as rows, int() as columns), _PickledDtype() as dtype, fortran, raw):
                fits = dtype.code.lstrip("|") in ("u1", "uint8") and not fortran
                fits = fits and columns == pixels and isinstance(raw, bytes)
                if fits and len(raw) == rows * columns:
                    return np.frombuffer(raw, np.uint8).reshape(rows, *info.input_shape)
        raise DataError(f"{path}: `data` is not an array of uint8 with {pixels} columns")


def _reconstruct(*_: object) -> _PickledArray:
    return _PickledArray()


def _encode(text: str, encoding: str | bytes = "latin1") -> bytes:
    """Python 3 writes the bytes of an old-protocol pickle as latin-1 text; no other codec."""
    if encoding not in ("latin1", b"latin1"):
        raise ValueError(f"codec {encoding!r}")
    return text.encode("latin1")


_PERMITTED: Mapping[str, Callable[..., object]] = {
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray._reconstruct": _reconstruct,
    "numpy.ndarray": _PickledArray,
    "numpy.dtype": _PickledDtype,
    "_codecs.encode": _encode,
}
