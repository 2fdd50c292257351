"""IDX files (MNIST's format), plain or gzip."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nefl.data.arrays import Split, make_split
from nefl.data.catalog import DatasetInfo
from nefl.errors import DataError

# Where Debian's package dataset-fashion-mnist puts its files.
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
_PREFIX = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTE = 0x08
_LARGEST = 2**31  # bytes; a damaged header may promise anything


def find_idx(root: Path, info: DatasetInfo) -> dict[str, tuple[Path, ...]] | None:
    """The image files of each part; the labels lie beside them.

    Raises:
        DataError: some of the four files are there and one is missing.
    """
    for folder in (root, *(root / name for name in info.folders)):
        names = [f"{prefix}-images-idx3-ubyte" for prefix in _PREFIX.values()]
        names += [name.replace("images-idx3", "labels-idx1") for name in names]
        found = [_plain_or_gzip(folder / name) for name in names]
        if all(found):
            return {part: (path,) for part, path in zip(_PREFIX, found, strict=False) if path}
        if any(found):
            absent = names[found.index(None)]
            raise DataError(f"{folder / absent}: missing (also as .gz); all four files are needed")
    return None


def _plain_or_gzip(path: Path) -> Path | None:
    candidates = (path, path.with_name(f"{path.name}.gz"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def labels_beside(images: Path) -> Path:
    """The label file that belongs to an image file."""
    name = images.name.removesuffix(".gz").replace("images-idx3", "labels-idx1")
    return _plain_or_gzip(images.with_name(name)) or images.with_name(name)


def read_idx_pair(path: Path, info: DatasetInfo) -> Split:
    """Read an image file and the label file beside it.

    Raises:
        DataError: a file is not IDX, has another size than its header says, or other images.
    """
    images = read_idx(path, axes=3)
    if images.shape[1:] != info.input_shape[1:]:
        raise DataError(f"{path}: images of {images.shape[1:]}, expected {info.input_shape[1:]}")
    labels = labels_beside(path)
    return make_split(images[:, None], read_idx(labels, axes=1), info.classes, str(labels))


def read_idx(path: Path, axes: int) -> npt.NDArray[np.uint8]:
    """Read one IDX file of unsigned bytes with the given number of axes."""
    header_bytes = 4 + 4 * axes
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(header_bytes)
            expected = bytes((0, 0, _UNSIGNED_BYTE, axes))
            if header[:4] != expected or len(header) != header_bytes:
                raise DataError(
                    f"{path}: starts with {header[:4].hex()}, expected {expected.hex()} and "
                    f"{axes} sizes: not an IDX file of unsigned bytes with {axes} axes"
                )
            shape = np.frombuffer(header, ">u4", offset=4).astype(np.int64)
            size = math.prod(shape.tolist())
            if size > _LARGEST:
                raise DataError(f"{path}: its header promises {size} bytes; fetch the file again")
            # One byte more than promised, to see a file that is too long; never the whole of it.
            body = file.read(size + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file ({error}); fetch it again") from error
    if len(body) != size:
        found = "more" if len(body) > size else str(len(body))
        raise DataError(
            f"{path}: its header promises {size} bytes, found {found}; fetch the file again"
        )
    return np.frombuffer(body, np.uint8).reshape(shape)
