"""Tables: rows of numbers and words, from CSV, JSON lines, or scikit-learn's own.

A table becomes three columns: `features`, float64 [N, F], in which a column of words has a number
for each of its words; `target`, the class or number to learn; and, where a column says whose a
row is, `client`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nefl.data.class_names import labels_by_name
from nefl.data.columns import Columns, Examples
from nefl.data.splitting import number_owners, split_rows
from nefl.data.table_files import Table, read_file
from nefl.errors import ConfigError, DataError

FEATURES, TARGET, CLIENT = "features", "target", "client"

FEW = 3
"""Rows that a class has on average, or whole numbers are hardly classes."""

MAX_WORDS = 100
"""Different words that a column may have to be taken as kinds of something."""

SKLEARN = {
    "iris": "load_iris",
    "wine": "load_wine",
    "breast-cancer": "load_breast_cancer",
    "diabetes": "load_diabetes",
}
"""scikit-learn's tables that come with it."""


@dataclass(frozen=True)
class TableOptions:
    """How a table is read.

    Attributes:
        target: the column to learn; the last one if left out.
        client: the column that says whose a row is, if there is one.
        features: the columns to learn from; all others if left out.
        learn: `classes`, `numbers`, or `auto`: numbers if the target has fractions or more than a
            hundred different values, classes otherwise.
        test: the share of rows that is kept for testing, chosen by `seed`; or
        test_root: the file of the test rows.
        seed: where that choice comes from.
    """

    target: str | None = None
    client: str | None = None
    features: Sequence[str] | None = None
    learn: str = "auto"
    test: float = 0.2
    test_root: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no table can be read by."""
        if not 0 < self.test < 1:
            raise ConfigError(f"data.options.test is {self.test}: give a share between 0 and 1")
        if self.learn not in ("auto", "classes", "numbers"):
            raise ConfigError(
                f"data.options.learn is {self.learn!r}: give 'classes', 'numbers' or 'auto'"
            )


@dataclass(frozen=True)
class Column:
    """What becomes of a column to learn from.

    Attributes:
        name: as it stands in the file.
        words: a column of words has a number for each of them, 1 or 0; empty for numbers.
        missing: what a missing number is taken for.
    """

    name: str
    words: tuple[str, ...] = ()
    missing: float = 0.0


def read_table(path: Path, options: TableOptions) -> Examples:
    """Read a CSV file or JSON lines.

    Raises:
        DataError: the file does not parse, or has no such column.
    """
    table = read_file(path)
    if options.test_root is None:
        return table_examples(table, options, str(path))
    test = Path(options.test_root)
    other = read_file(test, [name for name, values in table.items() if values.dtype == object])
    if missing := sorted(set(table) - set(other)):
        raise DataError(f"{test}: has no column {missing[0]!r}, {path} has")
    for name, values in table.items():
        _check_sort(other[name], name, test, words=values.dtype == object, others=f"{path}'s")
    rows = len(next(iter(table.values())))
    joined = {name: np.concatenate([table[name], other[name]]) for name in table}
    return table_examples(joined, options, str(path), train_rows=rows)


def read_sklearn(name: str, options: TableOptions) -> Examples:
    """Return one of scikit-learn's own tables."""
    from sklearn import datasets

    bunch = getattr(datasets, SKLEARN[name])()
    names = [str(each) for each in bunch.feature_names]
    table: dict[str, npt.NDArray[Any]] = {
        each: bunch.data[:, place].astype(np.float64) for place, each in enumerate(names)
    }
    classes = getattr(bunch, "target_names", None)
    target = bunch.target
    if classes is not None:
        table[TARGET] = np.asarray([str(classes[label]) for label in target], dtype=object)
    else:
        table[TARGET] = np.asarray(target, dtype=np.float64)
    return table_examples(table, options, name)


def table_examples(
    table: Table, options: TableOptions, source: str, train_rows: int | None = None
) -> Examples:
    """Turn a table into columns, its rows split into train and test.

    Args:
        table: the columns as they stand in a file.
        options: how it is read.
        source: the file at fault if something is wrong.
        train_rows: how many leading rows are for training, where the test rows have a file.

    Raises:
        DataError: if a column is not there or cannot be used.
        ConfigError: if one column is to serve as two things.
    """
    target, features = _roles(table, options, source)
    rows = len(table[target])
    owners, owner_names = number_owners(table.get(options.client or ""), source)
    values, names = _learnt(table[target], options.learn, f"{source}: {target}")
    parts = split_rows(rows, values if names else None, options.test, options.seed, train_rows)
    described = _described(table, features, parts[0], source)
    columns: dict[str, npt.NDArray[Any]] = {FEATURES: encode(table, described), TARGET: values}
    if owners is not None:
        columns[CLIENT] = owners
    train, test = ({name: column[part] for name, column in columns.items()} for part in parts)
    numbers = train[FEATURES]
    deviation = numbers.std(axis=0)
    facts: dict[str, Any] = {
        "class_names": names,
        "columns": [asdict(column) for column in described],
        "target": target,
        "mean": numbers.mean(axis=0).tolist(),
        "std": np.where(deviation > 0, deviation, 1.0).tolist(),
        "owners": owner_names,
    }
    if not names:
        facts["target_mean"] = float(train[TARGET].mean())
        facts["target_std"] = float(train[TARGET].std()) or 1.0
    return Examples(train, test, facts)


def _roles(table: Table, options: TableOptions, source: str) -> tuple[str, list[str]]:
    """Return the column to learn and those to learn from."""
    others = [name for name in table if name != options.client]
    if options.target is None and not others:
        raise DataError(f"{source}: has no column to learn")
    target = options.target if options.target is not None else others[-1]
    rest = [name for name in others if name != target]
    features = rest if options.features is None else list(options.features)
    for name in (target, options.client, *features):
        if name is not None and name not in table:
            raise DataError(f"{source}: has no column {name!r}; there are {', '.join(table)}")
    if target == options.client:
        raise ConfigError(f"data.options.client is {target!r}, the column to learn; name another")
    for name, what in ((target, "the column to learn"), (options.client, "whose a row is")):
        if name in features:
            raise ConfigError(f"data.options.features has {name!r}, {what}; leave it out there")
    return target, features


def own_table(path: Path, facts: Mapping[str, Any]) -> Columns:
    """Return the rows of a client's own table, encoded as all clients' are.

    Args:
        path: a CSV file or JSON lines.
        facts: what the run's table knows of its columns.

    Raises:
        DataError: if a column is missing or of another sort, or a class is not the run's.
    """
    columns = [Column(c["name"], tuple(c["words"]), float(c["missing"])) for c in facts["columns"]]
    names, learnt = facts["class_names"], facts["target"]
    words = [column.name for column in columns if column.words]
    table = read_file(path, words if all(map(_is_number, names)) else [*words, learnt])
    for name in (*(column.name for column in columns), learnt):
        if name not in table:
            raise DataError(f"{path}: has no column {name!r}; there are {', '.join(table)}")
    for column in columns:
        values = table[column.name]
        _check_sort(values, column.name, path, words=bool(column.words), others="the run's")
    learn = "classes" if names else "numbers"
    values, found = _learnt(table[learnt], learn, f"{path}: {learnt}")
    target = labels_by_name(found, names, str(path))[values] if names else values
    return {FEATURES: encode(table, columns), TARGET: target}


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _check_sort(
    values: npt.NDArray[Any], name: str, path: Path, *, words: bool, others: str
) -> None:
    sorts = ("numbers", "words")
    found = values.dtype == object
    if found != words:
        raise DataError(f"{path}: column {name!r} holds {sorts[found]}, {others} {sorts[words]}")


def _learnt(
    column: npt.NDArray[Any], learn: str, source: str
) -> tuple[npt.NDArray[Any], list[str]]:
    """Return classes with their names, or numbers and no names."""
    words = column.dtype == object
    missing = column == "" if words else np.isnan(column)
    if missing.any():
        raise DataError(f"{source}: row {int(np.argmax(missing))} has nothing to learn")
    if learn == "numbers" and words:
        raise DataError(f"{source}: holds words; set data.options.learn to 'classes'")
    if learn == "auto":
        kinds = len(np.unique(column))
        whole = words or bool((column == np.round(column)).all())
        learn = "classes" if whole and kinds <= MAX_WORDS else "numbers"
        if words and kinds > MAX_WORDS:
            raise DataError(f"{source}: {kinds} different words; expected {MAX_WORDS} or fewer")
        if learn == "classes" and not words and kinds > len(column) // FEW:
            raise DataError(
                f"{source}: {kinds} different whole numbers in {len(column)} rows; set "
                "data.options.learn to 'numbers' to foretell them, or to 'classes'"
            )
    if learn == "numbers":
        return column.astype(np.float64), []
    kinds_, labels = np.unique(column, return_inverse=True)
    names = [str(kind) if words else _name_of(float(kind)) for kind in kinds_]
    return labels.astype(np.int64), names


def _name_of(number: float) -> str:
    """Return the shortest text that only this number has."""
    return str(int(number)) if number.is_integer() else repr(number)


def _described(
    table: Table, features: Sequence[str], train: npt.NDArray[np.int64], source: str
) -> list[Column]:
    """Return what becomes of each feature; a missing number is the training rows' mean."""
    columns = []
    for name in features:
        values = table[name]
        if values.dtype == object:
            words = sorted(set(values.tolist()))
            if len(words) > MAX_WORDS:
                raise DataError(
                    f"{source}: column {name!r} has {len(words)} different words, expected "
                    f"{MAX_WORDS} or fewer; leave it out by data.options.features"
                )
            columns.append(Column(name, tuple(words)))
        else:
            known = values[train][np.isfinite(values[train])]
            columns.append(Column(name, missing=float(known.mean()) if len(known) else 0.0))
    if not columns:
        raise DataError(f"{source}: no column to learn from")
    return columns


def encode(table: Table, columns: Sequence[Column]) -> npt.NDArray[np.float64]:
    """Return all columns as numbers [rows, features]; a word that is not known has a 1 nowhere."""
    encoded: list[npt.NDArray[Any]] = []
    for column in columns:
        values = table[column.name]
        if column.words:
            encoded += [(values == word).astype(np.float64) for word in column.words]
        else:
            encoded.append(np.where(np.isfinite(values), values, column.missing))
    return np.stack(encoded, axis=1)
