"""Series of numbers: channels over time, from arrays or from scikit-learn's digits read in rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from nefl.data.columns import Columns, Examples
from nefl.data.splitting import number_owners
from nefl.errors import DataError

SERIES, TARGET, CLIENT = "series", "target", "client"


def read_digit_strokes() -> Examples:
    """Return scikit-learn's digits as series: eight numbers at each of eight steps, row by row."""
    from nefl.data.builtin import read_digits

    decoded = read_digits()
    made: list[Columns] = [
        {
            # [N, 1, steps, numbers] to [N, numbers, steps]
            SERIES: np.ascontiguousarray(part.images[:, 0].transpose(0, 2, 1), dtype=np.float32),
            TARGET: part.labels,
        }
        for part in (decoded.train, decoded.test)
    ]
    train, test = made
    return described(train, test, list(decoded.class_names))


def series_examples(arrays: Mapping[str, npt.NDArray[Any]], source: str) -> Examples:
    """Return series from a user's arrays.

    Args:
        arrays: `x_train` and `x_test`, [N, channels, steps] or [N, steps]; `y_train` and `y_test`,
            whole numbers for classes or fractions for numbers to foretell; optionally
            `class_names`, and `client_train` for whose each is.
        source: the file or function at fault.

    Raises:
        DataError: if an array is missing or of another shape.
    """
    owners, _ = number_owners(arrays.get("client_train"))
    parts = []
    for part in ("train", "test"):
        x, y = (_taken(arrays, f"{letter}_{part}", source) for letter in "xy")
        x = x[:, None] if x.ndim == 2 else x
        if x.ndim != 3 or not np.issubdtype(x.dtype, np.number):
            raise DataError(
                f"{source}: x_{part} is {x.dtype} of shape {x.shape}; expected numbers "
                "[N, channels, steps]"
            )
        whole = np.issubdtype(y.dtype, np.integer)
        target = y.astype(np.int64) if whole else y.astype(np.float32)
        parts.append({SERIES: np.ascontiguousarray(x, dtype=np.float32), TARGET: target})
        if owners is not None:
            # Whose a test example is does not matter: nobody trains on it.
            parts[-1][CLIENT] = owners if part == "train" else np.zeros(len(x), np.int64)
    names = [str(name) for name in arrays.get("class_names", ())]
    labels = [part[TARGET] for part in parts]
    if not names and np.issubdtype(labels[0].dtype, np.integer):
        names = [str(n) for n in range(int(max(each.max(initial=-1) for each in labels)) + 1)]
    return described(parts[0], parts[1], names)


def _taken(arrays: Mapping[str, npt.NDArray[Any]], name: str, source: str) -> npt.NDArray[Any]:
    if name not in arrays:
        raise DataError(f"{source}: no array {name}; expected x_train, y_train, x_test, y_test")
    return np.asarray(arrays[name])


def described(
    train: Mapping[str, npt.NDArray[Any]],
    test: Mapping[str, npt.NDArray[Any]],
    class_names: list[str],
) -> Examples:
    """Add what is known of series: the mean and deviation of each channel, and of numbers."""
    values = train[SERIES].astype(np.float64)
    deviation = values.std(axis=(0, 2))
    facts: dict[str, Any] = {
        "class_names": class_names,
        "mean": values.mean(axis=(0, 2)).tolist(),
        "std": np.where(deviation > 0, deviation, 1.0).tolist(),
    }
    if not class_names:
        facts["target_mean"] = float(train[TARGET].mean())
        facts["target_std"] = float(train[TARGET].std()) or 1.0
    return Examples(dict(train), dict(test), facts)
