"""A user's own data: arrays from a `.npz` file or from a function."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nefl.data.arrays import Decoded, Split, as_images, make_split
from nefl.data.class_names import classes_up_to
from nefl.errors import DataError
from nefl.own_code import call_own
from nefl.references import import_function

_MOST_PACKED = 100
_MIN_BOMB = 64 * 2**20
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def read_npz(path: Path) -> Decoded:
    """Read x_train, y_train, x_test, y_test and, if there, class_names, as images.

    Raises:
        DataError: the file does not parse, lacks an array, or holds Python objects.
    """
    if path.is_dir():
        raise DataError(
            f"{path}: is a folder, expected a .npz file; a folder of images is data.name = 'images'"
        )
    return decoded_arrays(load_npz(path), str(path))


def load_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return all arrays of a `.npz` file; never unpickles.

    Raises:
        DataError: the file does not parse, or holds Python objects.
    """
    try:
        with np.load(path, allow_pickle=False) as content:
            _check_packed(path, content)
            return {name: content[name] for name in content.files}
    except DataError:
        raise
    except Exception as error:  # a damaged archive fails in a dozen ways, out of memory among them
        raise DataError(
            f"{path}: not a complete .npz file of plain arrays ({error}); write it again "
            "with numpy.savez, without Python objects"
        ) from error


def names_classes(path: Path) -> bool:
    """Whether a sound `.npz` file says what its classes are called."""
    with np.load(path, allow_pickle=False) as content:
        return "class_names" in content.files


def _check_packed(path: Path, content: object) -> None:
    """Refuse a small file that unpacks to gigabytes; images are never packed so tightly."""
    if not isinstance(content, np.lib.npyio.NpzFile):
        raise DataError(f"{path}: a single array; save the four with numpy.savez")
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    packed = path.stat().st_size
    if unpacked > max(_MIN_BOMB, _MOST_PACKED * packed):
        raise DataError(
            f"{path}: {packed} bytes would unpack to {unpacked}, at most {_MOST_PACKED} times as "
            "much is taken; write it again with numpy.savez"
        )


def call_function(reference: str, options: Mapping[str, object]) -> Decoded:
    """Call `package.module:function` with the options and take the arrays it returns.

    Raises:
        ConfigError: there is no such function, it fails, or it takes other options.
        DataError: it returns something else.
    """
    result = call_own(reference, import_function(reference), dict(options))
    if not isinstance(result, Mapping):
        raise DataError(
            f"{reference}: returned {type(result).__name__}, expected a dict with "
            f"{', '.join(_ARRAYS)}"
        )
    return decoded_arrays(result, reference)


def decoded_arrays(arrays: Mapping[str, npt.ArrayLike], source: str) -> Decoded:
    """Check the four arrays; class names default to the numbers of the classes."""
    missing = [name for name in _ARRAYS if name not in arrays]
    if missing:
        raise DataError(
            f"{source}: no array {', '.join(missing)}; expected {', '.join(_ARRAYS)} "
            "and, optionally, class_names"
        )
    names = None
    if "class_names" in arrays:
        names = tuple(str(name) for name in _array(arrays, "class_names", source).ravel())
    classes = len(names) if names else None
    train, test = (_split(arrays, part, classes, source) for part in ("train", "test"))
    if names is None:
        largest = max(split.labels.max(initial=-1) for split in (train, test))
        names = classes_up_to(int(largest), source)
    return Decoded(train, test, names)


def _split(
    arrays: Mapping[str, npt.ArrayLike], part: str, classes: int | None, source: str
) -> Split:
    images = as_images(_array(arrays, f"x_{part}", source), f"{source}: x_{part}")
    labels = _array(arrays, f"y_{part}", source)
    return make_split(images, labels, classes, f"{source}: y_{part}")


def _array(arrays: Mapping[str, npt.ArrayLike], name: str, source: str) -> npt.NDArray[np.generic]:
    try:
        return np.asarray(arrays[name])
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists, tensors on a GPU
        raise DataError(
            f"{source}: {name}: cannot be made an array ({error}); give a numpy array"
        ) from error
