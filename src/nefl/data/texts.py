"""Texts as tokens: from files, JSON lines, or the Python standard library's own source.

A text becomes rows of one length. For the next token a client's texts are joined and cut into
rows; for a class every text is a row, cut off or filled up with the padding token, which is one
more than the tokenizer has.
"""

import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nefl.data.class_names import labels_by_name
from nefl.data.columns import Columns, Examples
from nefl.data.splitting import number_owners, split_rows
from nefl.data.tokens import BYTES, PLAIN, Tokens, find_tokens, tokens_here
from nefl.errors import ConfigError, DataError, unknown_name

TOKENS, LABEL, CLIENT = "tokens", "label", "client"

LINES = (".jsonl", ".ndjson", ".json")
"""How the names of files of JSON lines end."""

_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "__pycache__", "turtledemo"}


@dataclass(frozen=True)
class TextOptions:
    """How texts are read.

    Attributes:
        length: tokens of a row.
        text: the column of JSON lines that holds the text.
        label: the column that holds its class, for classification.
        client: the column that says whose it is; for folders, the first folder below the root.
        test: the share of rows that is kept for testing.
        seed: where that choice comes from.
        classes: for the standard library's packages, how many of the largest to tell apart.
        most: rows of one client at the most; all if left out.
        only: the clients to take, by name: packages, folders, values of the column; all if none
            is named.
        without: clients to leave out.
        tokenizer: `bytes`; `bpe`, trained on the data; or the file of one, or a folder with
            `tokenizer.json` in it.
        vocabulary: for `bpe`, how many tokens there may be.
    """

    length: int = 128
    text: str = "text"
    label: str = "label"
    client: str | None = None
    test: float = 0.1
    seed: int = 0
    classes: int = 10
    most: int | None = None
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    tokenizer: str = PLAIN
    vocabulary: int = 4096

    def __post_init__(self) -> None:
        """Refuse what no text can be read by."""
        if not 2 <= self.length <= 65_536:
            raise ConfigError(f"data.options.length is {self.length}: give 2 to 65536 tokens")
        if not 0 < self.test < 1:
            raise ConfigError(f"data.options.test is {self.test}: give a share between 0 and 1")
        if not BYTES < self.vocabulary <= 1_000_000:
            raise ConfigError(
                f"data.options.vocabulary is {self.vocabulary}: give more than {BYTES} tokens, at "
                "most 1000000"
            )
        if self.classes < 2:
            raise ConfigError(f"data.options.classes is {self.classes}: give 2 or more")


def read_stdlib(options: TextOptions) -> Examples:
    """Return the Python standard library's own source as rows for the next token."""
    return next_token_examples(stdlib_texts(), options, "stdlib")


def read_stdlib_packages(options: TextOptions) -> Examples:
    """Return pieces of the standard library's source with the package that each is from."""
    texts = _chosen(stdlib_texts(), options, "stdlib-packages")
    sizes = {name: sum(map(len, parts)) for name, parts in texts.items()}
    chosen = sorted(sorted(sizes, key=lambda name: (-sizes[name], name))[: options.classes])
    tokens = _tokens_for(options, {name: texts[name] for name in chosen})
    rows, labels = [], []
    for label, name in enumerate(chosen):
        cut = _cut(tokens.encode(b"\n".join(texts[name])), options.length)[: options.most]
        rows.append(cut)
        labels.append(np.full(len(cut), label, np.int64))
    joined = np.concatenate(rows), np.concatenate(labels)
    return _labelled(*joined, chosen, None, options, "stdlib-packages", tokens)


def stdlib_texts() -> dict[str, list[bytes]]:
    """Return the source files of each package or module of the standard library, in order."""
    root = Path(sysconfig.get_path("stdlib"))
    texts: dict[str, list[bytes]] = {}
    for path in sorted(root.rglob("*.py")):
        below = path.relative_to(root).parts
        if _SKIPPED & set(below):
            continue
        texts.setdefault(below[0].removesuffix(".py"), []).append(path.read_bytes())
    if not texts:
        raise DataError(f"{root}: the standard library's source is not there")
    return texts


def read_text_files(root: Path, options: TextOptions) -> Examples:
    """Return text files, or a folder of them, as rows for the next token.

    Every file below one folder of the root belongs to the client of that folder's name; files in
    the root itself are a client each.

    Raises:
        DataError: if there are none.
    """
    return next_token_examples(_files_below(root), options, str(root))


def text_files(root: Path) -> list[Path]:
    """Return a file, or all files below a folder but hidden ones, in order."""
    if not root.is_dir():
        return [root]
    below = (path for path in root.rglob("*") if path.is_file())
    return sorted(p for p in below if not any(s[0] == "." for s in p.relative_to(root).parts))


def _files_below(root: Path) -> dict[str, list[bytes]]:
    """Return the text files of each first folder below a root."""
    texts: dict[str, list[bytes]] = {}
    for path in text_files(root):
        below = path.relative_to(root).parts or (path.name,)
        texts.setdefault(below[0], []).append(path.read_bytes())
    if not texts:
        raise DataError(f"{root}: no text file in it")
    return texts


def read_json_lines(path: Path, options: TextOptions, *, classify: bool) -> Examples:
    """Return JSON lines with a text each, for its class or for the next token.

    Raises:
        DataError: the file does not parse, or lacks a column.
    """
    table = _read_lines(path)
    texts = [str(text).encode() for text in _column(table, options.text, path)]
    owner = None if options.client is None else np.asarray(_column(table, options.client, path))
    if classify:
        kept = _first_of_each(owner, len(texts), options.most)
        kept = kept[_asked_for(owner, len(texts), options, str(path))[kept]]
        names, labels = np.unique(
            np.asarray([str(each) for each in _column(table, options.label, path)]),
            return_inverse=True,
        )
        labels, owner = labels[kept].astype(np.int64), None if owner is None else owner[kept]
        training, _ = split_rows(len(kept), labels, options.test, options.seed)
        seen = (texts[place] for place in kept[training])
        tokens = find_tokens(options.tokenizer, seen, options.vocabulary)
        rows = np.stack([padded(texts[place], options.length, tokens) for place in kept])
        return _labelled(rows, labels, list(map(str, names)), owner, options, str(path), tokens)
    gathered: dict[str, list[bytes]] = {}
    for place, text in enumerate(texts):
        gathered.setdefault("all" if owner is None else str(owner[place]), []).append(text)
    return next_token_examples(gathered, options, str(path), owned=owner is not None)


def _asked_for(
    owner: npt.NDArray[Any] | None, rows: int, options: TextOptions, source: str
) -> npt.NDArray[np.bool_]:
    """Return which rows belong to clients that options ask for.

    Raises:
        ConfigError: naming a client that is not there, or the option where rows are nobody's.
    """
    if not options.only and not options.without:
        return np.ones(rows, np.bool_)
    if owner is None:
        key = "only" if options.only else "without"
        raise ConfigError(
            f"data.options.{key} of {source}: names clients, and no column says whose a text is; "
            "set data.options.client"
        )
    chosen = _chosen({str(name): () for name in np.unique(owner)}, options, source)
    return np.isin(owner.astype(str), list(chosen))


def _first_of_each(
    owner: npt.NDArray[Any] | None, rows: int, most: int | None
) -> npt.NDArray[np.int64]:
    """Return the first rows of every client, at most so many each; all rows are one's if nobody's.

    They stay in order.
    """
    everything = np.arange(rows, dtype=np.int64)
    if most is None or owner is None:
        return everything[:most]
    each = [everything[owner == name][:most] for name in np.unique(owner)]
    return np.sort(np.concatenate(each))


def own_texts(path: Path, options: TextOptions, facts: Mapping[str, Any]) -> Columns:
    """Return a client's own texts as the run's are: JSON lines, or text files for the next token.

    Raises:
        DataError: if they cannot be read, are too short, or have a class that is not the run's.
    """
    options = replace(options, client=None, length=int(facts["length"]))
    how = tokens_here(str(facts.get("tokenizer", PLAIN)), options.tokenizer)
    lines = "class_names" in facts or path.suffix in LINES
    table = _read_lines(path) if lines else {}
    if lines:
        texts = [str(text).encode() for text in _column(table, options.text, path)]
    else:
        texts = [text for some in _files_below(path).values() for text in some]
    if "class_names" not in facts:
        tokens = _cut(how.encode(b"\n".join(texts)), options.length + 1)[: options.most]
        if not len(tokens):
            raise DataError(f"{path}: too little text for a row of {options.length} tokens")
        return {TOKENS: tokens, CLIENT: np.zeros(len(tokens), np.int64)}
    names = [str(each) for each in _column(table, options.label, path)][: options.most]
    labels = labels_by_name(names, facts["class_names"], str(path))
    rows = np.stack([padded(text, options.length, how) for text in texts[: options.most]])
    return {TOKENS: rows, LABEL: labels}


def _read_lines(path: Path) -> Mapping[str, Sequence[Any]]:
    import pyarrow as pa
    from pyarrow import json

    try:
        table = json.read_json(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON lines ({error})") from error
    return {name: table[name].to_pylist() for name in table.column_names}


def _column(table: Mapping[str, Sequence[Any]], name: str, path: Path) -> Sequence[Any]:
    if name not in table:
        raise DataError(f"{path}: has no column {name!r}; there are {', '.join(table)}")
    for row, value in enumerate(table[name]):
        if value is None:
            raise DataError(f"{path}: line {row + 1} has no {name!r}")
    return table[name]


def next_token_examples(
    texts: Mapping[str, Sequence[bytes]], options: TextOptions, source: str, *, owned: bool = True
) -> Examples:
    """Join each owner's texts and cut them into rows of `length` tokens and the one behind.

    The last rows of every owner are for testing, so that no text is on both sides but one.

    Raises:
        DataError: if no text is long enough.
    """
    texts = _chosen(texts, options, source)
    tokens = _tokens_for(options, texts)
    parts: dict[str, list[tuple[npt.NDArray[Any], str]]] = {"train": [], "test": []}
    for owner, some in sorted(texts.items()):
        rows = _cut(tokens.encode(b"\n".join(some)), options.length + 1)[: options.most]
        tests = round(len(rows) * options.test) if len(rows) > 1 else 0
        parts["train"].append((rows[: len(rows) - tests], owner))
        parts["test"].append((rows[len(rows) - tests :], owner))
    columns = []
    for part in ("train", "test"):
        rows = np.concatenate([rows for rows, _ in parts[part]])
        if not len(rows):
            raise DataError(
                f"{source}: too little text for rows of {options.length} tokens; give more, or a "
                "smaller data.options.length"
            )
        owners = np.concatenate([np.full(len(rows), owner) for rows, owner in parts[part]])
        columns.append((rows, owners))
    names = sorted({str(owner) for _, owners in columns for owner in owners})
    numbers = {name: number for number, name in enumerate(names)}
    made: list[Columns] = [
        {TOKENS: rows, CLIENT: np.asarray([numbers[str(owner)] for owner in owners], np.int64)}
        for rows, owners in columns
    ]
    train, test = made
    facts = {"vocabulary": tokens.size, "length": options.length, "tokenizer": tokens.said}
    return Examples(train, test, facts | {"owners": names if owned else []})


def _chosen(
    texts: Mapping[str, Sequence[bytes]], options: TextOptions, source: str
) -> dict[str, Sequence[bytes]]:
    """Return the texts of those clients that options ask for.

    Raises:
        ConfigError: naming one that is not there.
    """
    for key in ("only", "without"):
        for name in getattr(options, key):
            if name not in texts:
                raise unknown_name(f"data.options.{key} of {source}", name, texts)
    return {
        owner: some
        for owner, some in texts.items()
        if owner not in options.without and (not options.only or owner in options.only)
    }


def _labelled(
    rows: npt.NDArray[Any],
    labels: npt.NDArray[np.int64],
    names: Sequence[str],
    owner: npt.NDArray[Any] | None,
    options: TextOptions,
    source: str,
    tokens: Tokens,
) -> Examples:
    owners, owner_names = number_owners(owner, source)
    columns: dict[str, npt.NDArray[Any]] = {TOKENS: rows, LABEL: labels}
    if owners is not None:
        columns[CLIENT] = owners
    parts = split_rows(len(rows), labels, options.test, options.seed)
    train, test = ({name: column[part] for name, column in columns.items()} for part in parts)
    facts = {
        "class_names": list(names),
        "vocabulary": tokens.size + 1,
        "padding": tokens.size,
        "length": options.length,
        "tokenizer": tokens.said,
        "owners": owner_names,
    }
    return Examples(train, test, facts)


def _tokens_for(options: TextOptions, texts: Mapping[str, Sequence[bytes]]) -> Tokens:
    """Return the tokenizer of options; one that is trained sees the first part of every text.

    That part is as large as the share of rows for training. Where all rows are kept in order, those
    for testing are not in it.
    """

    def training() -> Iterator[bytes]:
        for _, some in sorted(texts.items()):
            whole = b"\n".join(some)
            yield whole[: round(len(whole) * (1 - options.test))]

    return find_tokens(options.tokenizer, training(), options.vocabulary)


def _cut(tokens: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    rows = len(tokens) // length
    return tokens[: rows * length].reshape(rows, length)


def padded(text: bytes, length: int, tokens: Tokens) -> npt.NDArray[Any]:
    """Return a text's tokens, cut off or filled up."""
    row = np.full(length, tokens.size, np.int16 if tokens.size < 2**15 else np.int32)
    found = tokens.encode(text)[:length]
    row[: len(found)] = found
    return row
