"""The cache of decoded data sets: plain `.npy` files that many processes map at once.

A cache folder is written under another name and renamed when it is complete, and its arrays
carry checksums: a kill or a full disk leaves nothing that would later be believed.
"""

import fcntl
import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nefl.data.columns import Columns, Dataset, Examples, count_rows
from nefl.errors import DataError
from nefl.parsing import parse_json

CACHE_FORMAT = 2
_PARTS = ("train", "test")
_DESCRIPTION = "dataset.json"
_DIGEST_CHARACTERS = 12
_log = logging.getLogger(__name__)


def cache_prefix(name: str, identity: Mapping[str, object]) -> str:
    """Start of the folder names of one data set; its state completes the name."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
    return f"{slug}-{_digest({'name': name, **identity})}"


def _digest(content: Mapping[str, object]) -> str:
    text = json.dumps([CACHE_FORMAT, content], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARACTERS]


def cache_folder(base: Path, prefix: str, state: Mapping[str, object]) -> Path:
    """The folder for one state of a data set's source: a changed file leads to another folder."""
    return base / f"{prefix}-{_digest(state)}"


def newest_cached(base: Path, prefix: str) -> Path | None:
    """The latest complete cache folder of a data set, for when its source is gone."""
    found = [path.parent for path in base.glob(f"{prefix}-*/{_DESCRIPTION}")]
    return max(found, key=lambda folder: folder.stat().st_mtime_ns, default=None)


def open_or_build(
    folder: Path,
    name: str,
    state: Mapping[str, object],
    read: Callable[[], Examples],
    *,
    verify: bool,
) -> Dataset:
    """Map the cached data set; decode it first if it is absent or damaged.

    Raises:
        DataError: the source is bad, or the cache cannot be written.
    """
    if folder.exists():
        try:
            return open_cached(folder, verify=verify)
        except DataError as error:
            _log.warning("%s. Decoding it again.", error)
    with _locked(folder):
        # Another process may have built it while this one waited for the lock.
        if folder.exists():
            try:
                return open_cached(folder, verify=verify)
            except DataError:
                shutil.rmtree(folder)
        examples = _read_source(read, name)
        with _writing(folder):
            _write(folder, name, examples, state)
    return open_cached(folder, verify=False)


def _read_source(read: Callable[[], Examples], name: str) -> Examples:
    try:
        examples = read()
    except OSError as error:
        raise DataError(f"{error.filename or name}: cannot be read ({error})") from error
    for part in _PARTS:
        columns: Columns = getattr(examples, part)
        count_rows(columns, f"{name}: the {part} part")
        for column, array in columns.items():
            if array.dtype.hasobject:
                raise DataError(f"{name}: {part} column {column} holds Python objects, not numbers")
    return examples


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with ExitStack() as held:
        with _writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context(folder.with_name(f"{folder.name}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # freed by the system if the holder dies
        yield


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Say of a failed write that it was the cache's, and what to do."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{error.filename or folder}: the data cache cannot be written ({error}); "
            "free some space or name another folder with NEFL_CACHE"
        ) from error


def _write(folder: Path, name: str, examples: Examples, state: Mapping[str, object]) -> None:
    """Write under a temporary name, then rename. The caller holds the lock."""
    partial = folder.with_name(f".{folder.name}.partial")
    if partial.exists():  # left by a process that was killed: nobody else can be writing it
        shutil.rmtree(partial)
    partial.mkdir()
    try:
        described = {
            part: {
                column: _write_array(partial, f"{part}_{column}", array)
                for column, array in getattr(examples, part).items()
            }
            for part in _PARTS
        }
        description = {
            "format": CACHE_FORMAT,
            "name": name,
            "facts": examples.facts,
            "columns": described,
            "sources": state,
        }
        text = json.dumps(description, indent=1, default=str)
        (partial / _DESCRIPTION).write_text(text, encoding="utf-8")
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_array(folder: Path, key: str, array: npt.NDArray[Any]) -> dict[str, object]:
    path = folder / f"{key}.npy"
    np.save(path, np.ascontiguousarray(array), allow_pickle=False)
    return {
        "shape": array.shape,
        "dtype": array.dtype.name,
        "bytes": path.stat().st_size,
        "sha256": _file_sha256(path),
    }


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_cached(folder: Path, *, verify: bool) -> Dataset:
    """Memory-map a data set that was decoded before.

    Args:
        folder: `Dataset.folder` of the process that loaded it.
        verify: compare the checksums (reads every byte); sizes and shapes are always compared.

    Raises:
        DataError: a file is missing, or is not what was written.
    """
    description = _read_description(folder)
    try:
        train, test = (
            {
                column: _map_array(folder / f"{part}_{column}.npy", known, verify)
                for column, known in description["columns"][part].items()
            }
            for part in _PARTS
        )
        checksums = {
            f"{part}_{column}": str(known["sha256"])
            for part in _PARTS
            for column, known in description["columns"][part].items()
        }
        return Dataset(
            str(description["name"]), train, test, dict(description["facts"]), folder, checksums
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _damaged(folder / _DESCRIPTION, f"no proper entry {error}") from error


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / _DESCRIPTION
    try:
        description = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(description, dict) or description.get("format") != CACHE_FORMAT:
        raise _damaged(path, f"not a description of format {CACHE_FORMAT}")
    return description


def _map_array(path: Path, expected: Mapping[str, Any], verify: bool) -> npt.NDArray[Any]:
    try:
        size = path.stat().st_size
        if size != expected["bytes"]:
            raise _damaged(path, f"{size} bytes instead of {expected['bytes']}")
        if verify and _file_sha256(path) != expected["sha256"]:
            raise _damaged(path, "its checksum is not the one that was written")
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except DataError:
        raise
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, str(error)) from error
    if list(array.shape) != expected["shape"] or array.dtype.name != expected["dtype"]:
        raise _damaged(path, f"{array.dtype.name} {array.shape} instead of {dict(expected)}")
    return array


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(
        f"{path}: the cached data set is damaged ({reason}); delete the folder {path.parent} "
        "and load the data set again"
    )
