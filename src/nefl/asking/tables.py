"""Rows of a table as a user gives them: JSON or CSV, encoded as in training."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nefl.artifacts.card import Card
from nefl.artifacts.notes import to_json
from nefl.asking.arrays import finite
from nefl.asking.way import (
    MAX_ROWS,
    Answers,
    Light,
    Run,
    Wish,
    check_scales,
    misfit,
    read_json,
    run_in_parts,
    tell_classes,
    tell_numbers,
)
from nefl.data.tables import Column, encode
from nefl.errors import ConfigError, DataError

MISSING = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
     "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")
)  # fmt: skip
"""What stands for no number in a CSV file; the same as where tables are read for training."""

_TRUTH = {True: "true", False: "false"}


@dataclass(frozen=True)
class TableFacts:
    """What a card says of rows.

    Attributes:
        columns: what becomes of each column.
        mean: of each number that comes out of them; input = (number - mean) / std.
        std: likewise.
        target_mean: of the number that is foretold, if it is one; in its own units.
        target_std: likewise.
    """

    columns: tuple[Column, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    target_mean: float = 0.0
    target_std: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what no table has."""
        check_scales((*self.mean, self.target_mean), (*self.std, self.target_std), self.numbers + 1)
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise ConfigError("columns: each needs a name of its own")
        if not all(math.isfinite(column.missing) for column in self.columns):
            raise ConfigError("columns: what is missing is taken for a finite number")

    @property
    def numbers(self) -> int:
        """How many numbers come out of all columns."""
        return sum(len(column.words) or 1 for column in self.columns)


class Tables(Light):
    """Asked about rows of a table, it says their class, or a number in its own units."""

    noun = "row"
    takes = 'JSON as {"column": value, …}, a list of such, or CSV with a header'

    def __init__(self, card: Card, facts: TableFacts) -> None:
        if card.signature.input_shape != (facts.numbers,) or card.signature.tokens:
            raise misfit(card, f"{facts.numbers} numbers for inputs {card.signature.shown}")
        if not card.class_names and card.signature.outputs != 1:
            raise misfit(card, f"{card.signature.outputs} outputs without names")
        self._names, self._facts = card.class_names, facts
        self._mean, self._std = (
            torch.tensor(each, dtype=torch.float64) for each in (facts.mean, facts.std)
        )
        usual = {
            c.name: c.words[0] if c.words else float(f"{c.missing:.4g}") for c in facts.columns
        }
        self.example = to_json(usual, indent=1)

    def ask(self, data: bytes, where: str, run: Run, wish: Wish, *, is_json: bool) -> Answers:  # noqa: ARG002
        """Say what rows are, or what follows from them."""
        rows, several = read_rows(data, where, is_json=is_json)
        columns = self._facts.columns
        table = {column.name: _column(column, rows, where) for column in columns}
        numbers = torch.from_numpy(encode(table, columns))
        inputs = ((numbers - self._mean) / self._std).to(torch.float32)
        outputs = run_in_parts(run, finite(inputs, where))
        if self._names:
            return Answers(tuple(tell_classes(outputs, self._names)), several)
        facts = self._facts
        return Answers(tuple(tell_numbers(outputs, facts.target_mean, facts.target_std)), several)


def read_rows(
    data: bytes, where: str, *, is_json: bool
) -> tuple[Sequence[Mapping[str, Any]], bool]:
    """Return rows by column, and whether several could be given.

    Raises:
        DataError: if there are none, or too many.
    """
    if is_json or data.lstrip()[:1] in (b"{", b"["):
        content = read_json(data, where)
        several = isinstance(content, list)
        rows = content if several else [content]
        if not all(isinstance(row, dict) for row in rows):
            raise DataError(f'{where}: is no row; give {{"column": value}} or a list of such')
    else:
        rows, several = _read_csv(data, where), True
    if not 1 <= len(rows) <= MAX_ROWS:
        raise DataError(f"{where}: has {len(rows)} rows; give 1 to {MAX_ROWS}")
    return rows, several


def _read_csv(data: bytes, where: str) -> list[dict[str, str]]:
    try:
        text = data.decode("utf-8-sig")
        lines = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = next(lines, [])
        rows: list[dict[str, str]] = []
        for cells in lines:
            if not cells:
                continue  # an empty line, as at the end
            if len(cells) != len(header) or len(rows) > MAX_ROWS:
                raise DataError(
                    f"{where}: row {len(rows) + 1} has {len(cells)} cells, the header "
                    f"{len(header)}; at most {MAX_ROWS} rows are taken"
                )
            rows.append(dict(zip(header, cells, strict=True)))
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{where}: cannot be read as CSV ({error})") from None
    return rows


def _column(column: Column, rows: Iterable[Mapping[str, Any]], where: str) -> npt.NDArray[Any]:
    values = []
    for place, row in enumerate(rows, start=1):
        if column.name not in row:
            raise DataError(
                f"{where}: row {place} has no column {column.name!r}; give null, or leave the cell "
                "empty, where nothing is known"
            )
        at = f"{where}: row {place}, column {column.name!r}"
        values.append((_word if column.words else _number)(column, row[column.name], at))
    return np.asarray(values, dtype=object if column.words else np.float64)


def _word(column: Column, value: object, at: str) -> str:
    """Return a word as training had it: nothing is the empty word, truth is spelled as there."""
    if isinstance(value, list | dict):
        raise DataError(f"{at}: expected a word")
    word = "" if value is None else str(value)
    if isinstance(value, bool):
        truth = _TRUTH[value]
        word = next((each for each in column.words if each.lower() == truth), truth)
    if word not in column.words:
        known = ", ".join(repr(each) for each in column.words[:20])
        raise DataError(f"{at}: is {word[:80]!r}, of which nothing was learned; there are {known}")
    return word


def _number(column: Column, value: object, at: str) -> float:  # noqa: ARG001
    """Return a number; one that is missing is not finite."""
    if value is None or (isinstance(value, str) and value.strip() in MISSING):
        return math.nan
    try:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise DataError(f"{at}: is {str(value)[:80]!r}; expected a number")
