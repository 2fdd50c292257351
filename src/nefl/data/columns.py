"""Examples as columns: arrays of any dtype and shape that have a row for each example."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from nefl.errors import DataError

Columns = Mapping[str, npt.NDArray[Any]]
"""Arrays by name, all of one length."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples ready for training, normally memory-mapped from the cache.

    Attributes:
        name: as a configuration names it.
        train: training examples, by column.
        test: test examples, by the same columns.
        facts: what its reader found out besides, such as the names of classes; plain values.
        folder: the cache folder, from which `open_cached` maps the same arrays again.
        checksums: of each cached array, by the name of its file.
    """

    name: str
    train: Columns
    test: Columns
    facts: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Examples:
    """What a reader makes of its source, still in ordinary memory.

    Attributes:
        train: training examples, by column.
        test: test examples, by the same columns.
        facts: what must be known of them besides; plain values, ready for JSON.
    """

    train: Columns
    test: Columns
    facts: Mapping[str, Any] = field(default_factory=dict)


def count_rows(columns: Columns, what: str) -> int:
    """Return how many examples columns have.

    Raises:
        DataError: if there are none, or columns have unequal lengths.
    """
    lengths = {name: len(column) for name, column in columns.items()}
    if not lengths or not min(lengths.values()):
        raise DataError(f"{what}: has no examples")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"{what}: columns have unequal lengths ({listed})")
    return next(iter(lengths.values()))
