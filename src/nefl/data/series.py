"""Series of numbers: channels over time, from arrays or from scikit-learn's digits read in rows."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from nefl.data.class_names import classes_up_to, labels_by_name
from nefl.data.columns import Columns, Examples
from nefl.data.splitting import number_owners
from nefl.data.tables import Column
from nefl.errors import DataError

SERIES, TARGET, CLIENT = "series", "target", "client"
PARTS = ("train", "test")


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


def number_examples(arrays: Mapping[str, npt.NDArray[Any]], source: str, column: str) -> Examples:
    """Return series or rows of a table from a user's arrays.

    Args:
        arrays: `x_train` and `x_test`, [N, channels, steps] or [N, steps] for series, [N, columns]
            for tables; `y_train` and `y_test`, whole numbers for classes or fractions for numbers
            to foretell; optionally `class_names`, and `client_train` for whose each is.
        source: the file or function at fault.
        column: what the examples become: `SERIES` or `FEATURES`.

    Raises:
        DataError: if an array is missing, of another shape, or holds no numbers; or if targets are
            classes here and numbers there.
    """
    owners, _ = number_owners(arrays.get("client_train"), f"{source}: client_train")
    parts = []
    for part in ("train", "test"):
        x, y = (_taken(arrays, f"{letter}_{part}", source) for letter in "xy")
        x = x[:, None] if x.ndim == 2 and column == SERIES else x
        _check_numbers(x, y, column, part, source)
        target = y.astype(np.int64 if np.issubdtype(y.dtype, np.integer) else np.float64)
        exact = np.float32 if column == SERIES else np.float64
        parts.append({column: np.ascontiguousarray(x, dtype=exact), TARGET: target})
        if owners is not None:
            # Whose a test example is does not matter: nobody trains on it.
            parts[-1][CLIENT] = owners if part == "train" else np.zeros(len(x), np.int64)
    names = [str(name) for name in arrays.get("class_names", ())]
    return described(
        parts[0], parts[1], _classes([part[TARGET] for part in parts], names, source), column
    )


def _classes(targets: list[npt.NDArray[Any]], names: list[str], source: str) -> list[str]:
    """Return the names of the classes that targets are; none if they are numbers to foretell."""
    whole = [np.issubdtype(each.dtype, np.integer) for each in targets]
    if any(whole) != all(whole) or (names and not all(whole)):
        found = ", ".join(
            f"y_{part} has {'whole numbers' if each else 'fractions'}"
            for part, each in zip(PARTS, whole, strict=True)
        )
        named = f", and {len(names)} classes are named" if names else ""
        raise DataError(
            f"{source}: {found}{named}; give whole numbers (an integer dtype) for classes, and "
            "fractions without class_names for numbers to foretell"
        )
    if not all(whole):
        return []
    largest = int(max(each.max(initial=-1) for each in targets))
    names = names or list(classes_up_to(largest, source))
    if largest >= len(names) or min(each.min(initial=0) for each in targets) < 0:
        raise DataError(f"{source}: labels go beyond 0 to {len(names) - 1}, the classes named")
    return names


def own_arrays(
    arrays: Mapping[str, npt.NDArray[Any]], source: str, column: str, facts: Mapping[str, Any]
) -> Columns:
    """Return a client's own examples, `x_train` and `y_train`, as the run's are.

    Raises:
        DataError: if they have another shape than the run's, or a class that is not the run's.
    """
    given = {f"{a}_{part}": _taken(arrays, f"{a}_train", source) for a in "xy" for part in PARTS}
    names = arrays.get("class_names", np.asarray(facts["class_names"]))
    found = number_examples({**given, "class_names": names}, source, column)
    if bool(found.facts["class_names"]) != bool(facts["class_names"]):
        raise DataError(f"{source}: y_train is {given['y_train'].dtype}, the run learns the other")
    if len(found.facts["mean"]) != len(facts["mean"]):
        raise DataError(
            f"{source}: x_train is {given['x_train'].shape}, the run's second axis has "
            f"{len(facts['mean'])}"
        )
    target = found.train[TARGET]
    if facts["class_names"]:
        target = labels_by_name(found.facts["class_names"], facts["class_names"], source)[target]
    return {column: found.train[column], TARGET: target}


def _check_numbers(
    x: npt.NDArray[Any], y: npt.NDArray[Any], column: str, part: str, source: str
) -> None:
    wanted = "[N, channels, steps]" if column == SERIES else "[N, columns]"
    if x.ndim != wanted.count(",") + 1 or not np.issubdtype(x.dtype, np.number):
        raise DataError(
            f"{source}: x_{part} is {x.dtype} of shape {x.shape}; expected numbers {wanted}"
        )
    if y.shape != x.shape[:1] or not np.issubdtype(y.dtype, np.number):
        raise DataError(
            f"{source}: y_{part} is {y.dtype} of shape {y.shape}; expected a number for each of "
            f"the {len(x)} examples"
        )
    for name, array in (("x", x), ("y", y)):
        if not np.isfinite(array).all():
            raise DataError(f"{source}: {name}_{part} holds NaN or infinity; fill such gaps first")


def _taken(arrays: Mapping[str, npt.NDArray[Any]], name: str, source: str) -> npt.NDArray[Any]:
    if name not in arrays:
        raise DataError(f"{source}: no array {name}; expected x_train, y_train, x_test, y_test")
    return np.asarray(arrays[name])


def described(
    train: Mapping[str, npt.NDArray[Any]],
    test: Mapping[str, npt.NDArray[Any]],
    class_names: list[str],
    column: str = SERIES,
) -> Examples:
    """Add what is known of them: mean and deviation of each channel or column, and of numbers."""
    values = train[column].astype(np.float64)
    axes = tuple(axis for axis in range(values.ndim) if axis != 1)
    deviation = values.std(axis=axes)
    facts: dict[str, Any] = {
        "class_names": class_names,
        "mean": values.mean(axis=axes).tolist(),
        "std": np.where(deviation > 0, deviation, 1.0).tolist(),
    }
    if column != SERIES:
        facts["columns"] = [
            asdict(Column(f"x{place}", missing=mean)) for place, mean in enumerate(facts["mean"])
        ]
        facts["target"] = "y"  # what a CSV file of more such rows calls it
    if not class_names:
        facts["target_mean"] = float(train[TARGET].mean())
        facts["target_std"] = float(train[TARGET].std()) or 1.0
    return Examples(dict(train), dict(test), facts)
