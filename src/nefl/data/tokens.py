"""From texts to tokens and back: bytes, which need nothing, or a tokenizer of `tokenizers`.

A tokenizer is read from a file, or trained on the data. It is part of what a run and a file know of
their inputs, whole, as the JSON that `tokenizers` writes.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from nefl.errors import ConfigError, DataError
from nefl.extras import need

BYTES = 256
"""Different tokens, where a token is a byte."""

PLAIN, TRAINED = "bytes", "bpe"
"""Names of tokenizers: a token is a byte; pairs of them that are common, found on the data."""

FILE = "tokenizer.json"
"""What the file is called in a folder."""

SUM = "sha256:"
EXTRA = "text"


class Tokens(Protocol):
    """What turns texts into tokens and back."""

    @property
    def size(self) -> int:
        """How many different tokens there are."""

    @property
    def said(self) -> str:
        """What facts say of it: its name, or all of it."""

    def encode(self, text: bytes) -> npt.NDArray[Any]:
        """Return the tokens of a text."""

    def decode(self, tokens: Sequence[int], behind: Sequence[int] = ()) -> str:
        """Return the text of tokens that stand behind others."""


class Bytes:
    """Every byte is a token."""

    size = BYTES
    said = PLAIN

    def encode(self, text: bytes) -> npt.NDArray[Any]:
        """Return the bytes."""
        return np.frombuffer(text, np.uint8)

    def decode(self, tokens: Sequence[int], behind: Sequence[int] = ()) -> str:  # noqa: ARG002
        """Return the text of bytes."""
        return bytes(tokens).decode(errors="replace")


class Pieces:
    """A tokenizer of `tokenizers`; what it would put before or behind a text is left out.

    Args:
        text: its JSON.
        source: where that is from, for messages.

    Raises:
        DataError: if it is none.
    """

    def __init__(self, text: str, source: str) -> None:
        library = need("tokenizers", EXTRA)
        try:
            self._inner: Any = library.Tokenizer.from_str(text)
        except Exception as error:  # the library raises its own kind, of no common base
            raise DataError(f"{source}: is no tokenizer ({str(error)[:200]})") from None
        self.said = text
        self.size = int(self._inner.get_vocab_size(with_added_tokens=True))
        self._kind = np.int16 if self.size < np.iinfo(np.int16).max else np.int32

    def encode(self, text: bytes) -> npt.NDArray[Any]:
        """Return the tokens of a text; bytes that are no UTF-8 are replaced."""
        found = self._inner.encode(text.decode(errors="replace"), add_special_tokens=False)
        return np.asarray(found.ids, self._kind)

    def decode(self, tokens: Sequence[int], behind: Sequence[int] = ()) -> str:
        """Return the text of tokens; many have their spaces from those before them."""
        before = self._decoded(behind)
        whole = self._decoded([*behind, *tokens])
        return whole[len(before) :] if whole.startswith(before) else self._decoded(tokens)

    def _decoded(self, tokens: Sequence[int]) -> str:
        return str(self._inner.decode(list(tokens), skip_special_tokens=False))


def tokens_of(said: str, source: str) -> Tokens:
    """Return the tokenizer that facts describe.

    Raises:
        DataError: if they do not.
    """
    if said == PLAIN:
        return Bytes()
    if said.startswith("{"):
        return Pieces(said, source)
    raise DataError(f"{source}: tokenizer {said[:80]!r}: there is {PLAIN}, or one as JSON")


def find_tokens(name: str, texts: Iterable[bytes], vocabulary: int) -> Tokens:
    """Return the tokenizer that options ask for.

    Args:
        name: `bytes`, `bpe`, or a file or folder.
        texts: what one is trained on.
        vocabulary: how many tokens it may have then.

    Raises:
        NeflError: if there is none.
    """
    if name == PLAIN:
        return Bytes()
    if name == TRAINED:
        return Pieces(train_pieces(texts, vocabulary), "data.options.tokenizer")
    return Pieces(tokenizer_file(name).read_text("utf-8"), name)


def tokenizer_file(name: str) -> Path:
    """Return the file of a tokenizer.

    Raises:
        ConfigError: if there is none.
    """
    path = Path(name)
    found = path / FILE if path.is_dir() else path
    if not found.is_file():
        raise ConfigError(
            f"data.options.tokenizer {name!r}: is neither {PLAIN} nor {TRAINED}, nor a folder with "
            f"{FILE} in it or such a file; give one of them"
        )
    return found


def train_pieces(texts: Iterable[bytes], vocabulary: int) -> str:
    """Find common pieces of texts (byte-level byte-pair encoding); return the tokenizer as JSON.

    Every byte stays a token too, so that any text can be told.
    """
    library = need("tokenizers", EXTRA)
    need("tokenizers.models", EXTRA)
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator((text.decode(errors="replace") for text in texts), trainer)
    return str(made.to_str())


def facts_to_send(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts for a message: a tokenizer's checksum, as it may be longer than the weights."""
    said = facts.get("tokenizer")
    if not isinstance(said, str) or not said.startswith("{"):
        return dict(facts)
    return {**facts, "tokenizer": SUM + hashlib.sha256(said.encode()).hexdigest()}


def tokens_here(said: str, name: str) -> Tokens:
    """Return the tokenizer that a message speaks of, from a file of this machine where it must be.

    Args:
        said: what the facts of the message say.
        name: what the run's options name.

    Raises:
        DataError: if it is not here, or another one.
    """
    if not said.startswith(SUM):
        return tokens_of(said, "the run's facts")
    if name in (PLAIN, TRAINED):
        raise DataError(
            f"data.options.tokenizer {name!r}: was trained on the run's data, which a node with "
            "data of its own does not have; let the run name a file that all nodes have"
        )
    text = tokenizer_file(name).read_text("utf-8")
    if SUM + hashlib.sha256(text.encode()).hexdigest() != said:
        raise DataError(f"{name}: is another tokenizer than the server's; copy that one here")
    return Pieces(text, name)
