"""Data sets that are not images, by name: how each is read, and what is learned from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from nefl.data.columns import Examples
from nefl.data.own import load_npz
from nefl.data.series import SERIES as SERIES_COLUMN
from nefl.data.series import number_examples, read_digit_strokes
from nefl.data.tables import FEATURES, SKLEARN, TableOptions, read_sklearn, read_table
from nefl.data.texts import (
    TextOptions,
    read_json_lines,
    read_stdlib,
    read_stdlib_packages,
    read_text_files,
)
from nefl.errors import ConfigError

TABLE, SERIES, TEXT, NEXT = "table", "series", "text-classification", "next-token"
"""What can be learned from them."""


@dataclass(frozen=True)
class NoOptions:
    """A data set without options."""


@dataclass(frozen=True)
class Reader:
    """How one data set, or one format of files, is read.

    Attributes:
        learns: what is learned from it, unless a run says otherwise.
        options: the dataclass of its options.
        read: from its file or folder (None where it has none), its options and what is learned
            to examples.
        wants: what its root must be, for people; empty where it reads no files of the user's.
        also: what else can be learned from it.
    """

    learns: str
    options: type[Any]
    read: Callable[[Path | None, Any, str], Examples]
    wants: str = ""
    also: tuple[str, ...] = ()


def _table_of(name: str) -> Reader:
    return Reader(TABLE, TableOptions, lambda _root, options, _what: read_sklearn(name, options))


READERS: dict[str, Reader] = {
    **{name: _table_of(name) for name in SKLEARN},
    "csv": Reader(
        TABLE,
        TableOptions,
        lambda root, options, _: read_table(_given(root), options),
        "a CSV file with a header",
    ),
    "json-table": Reader(
        TABLE,
        TableOptions,
        lambda root, options, _: read_table(_given(root), options),
        "a file of JSON lines, a row each",
    ),
    "json-lines": Reader(
        TEXT,
        TextOptions,
        lambda root, options, what: read_json_lines(_given(root), options, classify=what == TEXT),
        "a file of JSON lines, a text each",
        also=(NEXT,),
    ),
    "text": Reader(
        NEXT,
        TextOptions,
        lambda root, options, _: read_text_files(_given(root), options),
        "a text file, or a folder of them",
    ),
    "stdlib": Reader(NEXT, TextOptions, lambda _root, options, _what: read_stdlib(options)),
    "stdlib-packages": Reader(
        TEXT, TextOptions, lambda _root, options, _what: read_stdlib_packages(options)
    ),
    "digit-strokes": Reader(SERIES, NoOptions, lambda *_: read_digit_strokes()),
    "series": Reader(
        SERIES,
        NoOptions,
        lambda root, _options, _what: number_examples(
            load_npz(_given(root)), str(root), SERIES_COLUMN
        ),
        "a .npz file with x_train, y_train, x_test, y_test",
    ),
    "npz": Reader(
        TABLE,
        NoOptions,
        lambda root, _options, _what: _from_npz(root, FEATURES),
        "a .npz file with x_train, y_train, x_test, y_test",
    ),
}


def _given(root: Path | None) -> Path:
    if root is None:
        raise ConfigError("data.root: name the file or folder to read")
    return root


def _from_npz(root: Path | None, column: str) -> Examples:
    path = _given(root)
    return number_examples(load_npz(path), str(path), column)


def read_options(name: str, options: Mapping[str, object]) -> Any:
    """Return the options of a data set, checked.

    Raises:
        ConfigError: naming an option that it does not have, or a wrong value.
    """
    kind = READERS[name].options
    known = [field.name for field in fields(kind)]
    for key in options:
        if key not in known:
            expected = ", ".join(known) or "none"
            raise ConfigError(f"{name}: unknown option {key!r}; expected {expected}")
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "value_error":
            raise ConfigError(f"{name}: {first['ctx']['error']}") from None
        raise ConfigError(f"{name}: option {key} is {first['input']!r}: {first['msg']}") from None
