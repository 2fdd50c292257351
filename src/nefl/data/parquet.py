"""Hugging Face parquet: finding the shards of each part, and decoding their rows."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nefl.data.arrays import Split, make_split
from nefl.data.catalog import DatasetInfo
from nefl.data.images import decode_images
from nefl.errors import DataError

_PART = re.compile(r"(?:^|[-_])(train|test|valid|validation)(?:[-_.].*)?$")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
_IMAGE_COLUMNS = ("img", "image")
_ROWS_AT_ONCE = 1024


def find_parquet(root: Path, info: DatasetInfo) -> dict[str, tuple[Path, ...]] | None:
    """Parquet files of each part (train, test, valid) in a folder or its usual sub-folders.

    Returns:
        None when there are no parquet files for both train and test.

    Raises:
        DataError: a shard is missing.
    """
    for folder in (root, *(root / name for name in info.folders)):
        parts = _parts(folder)
        if "train" in parts and "test" in parts:
            for files in parts.values():
                _check_shards(files)
            return {part: tuple(files) for part, files in parts.items()}
    return None


def _parts(folder: Path) -> dict[str, list[Path]]:
    parts: dict[str, list[Path]] = {}
    # The hub's converted branch has train/0000.parquet, ordinary ones train-00000-of-00001.parquet.
    candidates = [(path, path.stem) for path in sorted(folder.glob("*.parquet"))]
    candidates += [(path, path.parent.name) for path in sorted(folder.glob("t*/*.parquet"))]
    candidates += [(path, path.parent.name) for path in sorted(folder.glob("valid*/*.parquet"))]
    for path, name in candidates:
        match = _PART.search(name)
        if match:
            part = "valid" if match[1] == "validation" else match[1]
            parts.setdefault(part, []).append(path)
    return parts


def _check_shards(files: Sequence[Path]) -> None:
    matches = [_SHARD.search(path.stem) for path in files]
    numbers = {int(match[1]): int(match[2]) for match in matches if match}
    for total in set(numbers.values()):
        missing = sorted(set(range(total)) - set(numbers))
        if missing:
            raise DataError(
                f"{files[0].parent}: shard {missing[0]:05d} of {total} is missing beside "
                f"{files[0].name}; fetch all shards"
            )


def read_parquet(path: Path, info: DatasetInfo) -> Split:
    """Decode one parquet file.

    Raises:
        DataError: the file does not parse, lacks a column, or a row is bad.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            columns = set(file.schema_arrow.names)
            image = _column(path, columns, _IMAGE_COLUMNS)
            label = _column(path, columns, info.label_columns)
            labels: list[Any] = []
            rows = _rows(path, file, image, label, labels)
            images = decode_images(rows, file.metadata.num_rows, info.input_shape)
    except DataError:
        raise
    # Counts of rows that are not there end in errors of numpy's.
    except (pa.ArrowException, OSError, ValueError, IndexError, MemoryError, TypeError) as error:
        raise DataError(f"{path}: not a complete parquet file ({error}); fetch it again") from error
    if not all(type(number) is int for number in labels):
        raise DataError(f"{path}: column {label} does not hold one whole number for each image")
    return make_split(images, np.asarray(labels, np.int64), info.classes, str(path))


def _column(path: Path, columns: set[str], names: Sequence[str]) -> str:
    for name in names:
        if name in columns:
            return name
    raise DataError(f"{path}: no column {' or '.join(names)}; it has {', '.join(sorted(columns))}")


def _rows(
    path: Path, file: Any, image: str, label: str, labels: list[Any]
) -> Iterator[tuple[str, bytes]]:
    """Yield the encoded images; the labels of the rows so far are left in `labels`."""
    import pyarrow as pa

    row = 0
    # In batches, so that the encoded file never lies in memory beside the decoded array.
    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[image, label]):
        column = batch.column(image)
        if pa.types.is_struct(column.type):
            column = column.field("bytes")
        labels += batch.column(label).to_pylist()
        for data in column.to_pylist():
            if not isinstance(data, bytes):
                raise DataError(
                    f"{path}: row {row} of column {image} holds no image bytes; "
                    "files that only name image paths are not supported"
                )
            yield f"{path}: row {row}", data
            row += 1
