"""Test rows where a source has none of its own, and owners as numbers."""

from typing import Any

import numpy as np
import numpy.typing as npt

from nefl.data.subsets import Labels, choose_part
from nefl.errors import DataError


def split_rows(
    rows: int, labels: Labels | None, share: float, seed: int, train_rows: int | None = None
) -> tuple[Labels, Labels]:
    """Return the rows for training and those for testing, both in order.

    Args:
        rows: how many there are.
        labels: their classes, which both parts get their share of.
        share: the share that is for testing.
        seed: where the choice comes from.
        train_rows: how many leading rows are for training, where nothing is left to choose.
    """
    everything = np.arange(rows, dtype=np.int64)
    if train_rows is not None:
        return everything[:train_rows], everything[train_rows:]
    count = min(rows - 1, max(1, round(rows * share)))
    test = choose_part(rows, labels, count, seed, 2, "test rows")
    return np.setdiff1d(everything, test), test


def number_owners(
    column: npt.NDArray[Any] | None, source: str
) -> tuple[npt.NDArray[np.int64] | None, list[str]]:
    """Return owners as numbers from 0, and their names in that order.

    Raises:
        DataError: if a row of the source is nobody's.
    """
    if column is None:
        return None, []
    owners = column.astype(str)
    missing = np.isnan(column) if np.issubdtype(column.dtype, np.floating) else owners == ""
    if missing.any():
        raise DataError(f"{source}: row {int(np.argmax(missing))} does not say whose it is")
    names, numbers = np.unique(owners, return_inverse=True)
    return numbers.astype(np.int64), [str(name) for name in names]
