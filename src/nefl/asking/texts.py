"""Texts as a user gives them: plain, or in JSON; their class, or how they go on."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from nefl.artifacts.card import Card
from nefl.asking.way import (
    Answer,
    Answers,
    Light,
    Run,
    Wish,
    misfit,
    read_json,
    run_in_parts,
    tell_classes,
)
from nefl.data.texts import padded
from nefl.data.tokens import Tokens, tokens_of
from nefl.errors import ConfigError, DataError, NeflError

TAKES = 'plain text, or JSON as {"text": "…"}'

MAX_TEXTS = 1000
"""Texts that can be asked about at once."""

MAX_SECONDS = 20
"""After so long a text is completed no further."""


@dataclass(frozen=True)
class TextFacts:
    """What a card says of texts: how they become tokens."""

    tokenizer: str

    def __post_init__(self) -> None:
        """Refuse what is not known here."""
        try:
            self.tokens()
        except NeflError as error:
            raise ConfigError(str(error)) from None

    def tokens(self) -> Tokens:
        """Return what turns texts into tokens."""
        return tokens_of(self.tokenizer, "the file's description")


class Texts(Light):
    """Asked about texts, it says their class."""

    noun = "text"
    takes = f'{TAKES} or {{"texts": ["…"]}}'
    example = ""

    def __init__(self, card: Card, facts: TextFacts) -> None:
        taken, self._tokens = card.signature, facts.tokens()
        padding = self._tokens.size
        if len(taken.input_shape) != 1 or taken.tokens <= padding or taken.padding != padding:
            raise misfit(card, f"{taken.tokens} tokens, padding {taken.padding}")
        if not card.class_names or taken.each_token:
            raise misfit(card, "it names no classes")
        self._length, self._names = taken.input_shape[0], card.class_names

    def ask(self, data: bytes, where: str, run: Run, wish: Wish, *, is_json: bool) -> Answers:  # noqa: ARG002
        """Say what texts are; of a long one its beginning counts, as in training."""
        texts, several = read_texts(data, where, is_json=is_json)
        cut = [padded(text, self._length, self._tokens) for text in texts]
        rows = np.stack(cut).astype(np.int64)
        outputs = run_in_parts(run, torch.from_numpy(rows))
        return Answers(tuple(tell_classes(outputs, self._names)), several)


class Completion(Light):
    """Asked about a text, it says how that goes on, token by token."""

    noun = "text"
    takes = TAKES
    example = ""

    def __init__(self, card: Card, facts: TextFacts) -> None:
        taken, self._tokens = card.signature, facts.tokens()
        known = self._tokens.size
        if len(taken.input_shape) != 1 or not taken.each_token or taken.tokens < known:
            raise misfit(card, f"{taken.tokens} tokens, inputs {taken.shown}")
        if taken.outputs < known:
            raise misfit(card, f"{taken.outputs} outputs for {known} tokens")
        self._window = taken.input_shape[0]

    def ask(self, data: bytes, where: str, run: Run, wish: Wish, *, is_json: bool) -> Answers:
        """Complete a text."""
        texts, _ = read_texts(data, where, is_json=is_json)
        if len(texts) > 1:
            raise DataError(f"{where}: has {len(texts)} texts; one is completed at a time")
        begun = self._tokens.encode(texts[0])[-self._window :].tolist()
        if not begun:
            raise DataError(f"{where}: has no token to begin with; give a longer text")
        tokens, ended = self._complete(begun, run, wish)
        text = self._tokens.decode(tokens, begun)
        values = {"text": text, "tokens": len(tokens), "ended_by": ended}
        return Answers((Answer(text, values),))

    def _complete(self, start: Sequence[int], run: Run, wish: Wish) -> tuple[list[int], str]:
        generator = torch.Generator().manual_seed(wish.seed)
        known, until = list(start), perf_counter() + MAX_SECONDS
        begun = len(known)
        for _ in range(wish.length):
            if perf_counter() > until:
                return known[begun:], "time"
            recent = known[-self._window :]
            row = torch.zeros(1, self._window, dtype=torch.int64)
            row[0, : len(recent)] = torch.tensor(recent)
            # Nothing looks ahead: what fills up the row behind a token does not matter to it.
            known.append(_pick(run(row)[0, len(recent) - 1, : self._tokens.size], wish, generator))
        return known[begun:], "length"


def _pick(logits: Tensor, wish: Wish, generator: torch.Generator) -> int:
    if not wish.temperature:
        return int(logits.argmax())
    scaled = logits.double() - logits.max()  # so that a low temperature overflows nothing
    return int(torch.multinomial((scaled / wish.temperature).softmax(0), 1, generator=generator))


def read_texts(data: bytes, where: str, *, is_json: bool) -> tuple[list[bytes], bool]:
    """Return texts as bytes, and whether they were given as a list.

    Raises:
        DataError: if there is none, or it is no text.
    """
    content = read_json(data, where) if is_json else {"text": data.decode(errors="surrogateescape")}
    keys = set(content) if isinstance(content, dict) else set()
    found = content["text"] if keys == {"text"} else content["texts"] if keys == {"texts"} else None
    texts = [found] if isinstance(found, str) else found
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise DataError(f'{where}: is no text; give {{"text": "…"}} or {{"texts": ["…"]}}')
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise DataError(f"{where}: has {len(texts)} texts; give 1 to {MAX_TEXTS}")
    errors = (
        "replace" if is_json else "surrogateescape"
    )  # bytes that are no UTF-8 stay what they are
    return [text.encode(errors=errors) for text in texts], isinstance(found, list)
