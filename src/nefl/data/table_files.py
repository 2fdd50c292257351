"""Files of tables, CSV or JSON lines, to columns of numbers and words."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nefl.errors import DataError

Table = Mapping[str, npt.NDArray[Any]]
"""Columns as they stand in a file: float64 numbers (NaN where one is missing), or str objects.

Whatever is no number is the text in the file: dates and times too, and `true` and `false` of JSON.
"""


def read_file(path: Path, words: Iterable[str] = ()) -> Table:
    """Read a CSV file or JSON lines.

    Args:
        path: the file.
        words: columns that are known to hold words, whatever they look like in this file.

    Raises:
        DataError: the file does not parse, has no rows, or holds something else.
    """
    import pyarrow as pa

    known = frozenset(words)
    try:
        table = _read_arrow(path, known)
        return {n: _as_numpy(table[n], n, path, word=n in known) for n in table.column_names}
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: cannot be read as a table ({error})") from error


def _read_arrow(path: Path, words: frozenset[str]) -> Any:
    """Return pyarrow's table; what it takes for a date, or in CSV for truth, is read as text."""
    import pyarrow as pa
    from pyarrow import csv, json

    def read(texts: Iterable[str]) -> Any:
        kinds = dict.fromkeys(texts, pa.string())
        if lines:
            schema = pa.schema(list(kinds.items()))
            return json.read_json(path, parse_options=json.ParseOptions(explicit_schema=schema))
        return csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=kinds))

    lines = path.suffix in (".jsonl", ".ndjson", ".json")
    known = frozenset() if lines else words
    table = read(known)
    if not table.num_rows:
        raise DataError(f"{path}: has no rows")
    # What it guesses depends on all that is in this one file, and forgets how it was spelled.
    guessed = [
        field.name
        for field in table.schema
        if pa.types.is_temporal(field.type) or (pa.types.is_boolean(field.type) and not lines)
    ]
    # A schema would put its own columns first.
    return read(known.union(guessed)).select(table.column_names) if guessed else table


def _as_numpy(column: Any, name: str, path: Path, *, word: bool) -> npt.NDArray[Any]:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_null(kind) and word:
        return np.full(len(column), "", dtype=object)
    if pa.types.is_boolean(kind):
        spelled = {None: "", True: "true", False: "false"}
        return np.asarray([spelled[value] for value in column.to_pylist()], dtype=object)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.asarray([value or "" for value in column.to_pylist()], dtype=object)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
        return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    raise DataError(f"{path}: column {name!r} holds {kind}; expected numbers or words")
