"""What all ways of asking a file share: what comes in, what comes out, and the facts behind it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from nefl.artifacts.card import Card
from nefl.errors import ConfigError, DataError, NeflError, RunError
from nefl.parsing import parse_json

Run = Callable[[Tensor], Tensor]
"""From a batch of inputs to a network's outputs."""

BATCH = 32
"""Examples that a network gets at once."""

MAX_ROWS = 10_000
"""Examples that can be asked about at once."""

MAX_FILE = 64 * 2**20
"""Bytes of a file that are read."""

MAX_JSON = 16 * 2**20
"""Bytes of JSON that are read: read, it takes many times as much memory."""

TOP = 5
"""Classes in an answer, the likeliest first."""

MAX_TOKENS = 1000
"""Tokens by which a text is completed at the most."""


@dataclass(frozen=True)
class Wish:
    """How an answer is wanted.

    Attributes:
        length: tokens by which a text is completed.
        temperature: 0 takes the likeliest token every time; above, they are drawn, the more evenly
            the higher it is.
        seed: where draws come from.

    Raises:
        ConfigError: if that cannot be had.
    """

    length: int = 100
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what takes too long, or is no number."""
        if not 1 <= self.length <= MAX_TOKENS:
            raise ConfigError(f"length {self.length}: give 1 to {MAX_TOKENS} tokens")
        if not 0 <= self.temperature <= 100:  # nan is not either
            raise ConfigError(f"temperature {self.temperature}: give 0 to 100")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed {self.seed}: give 0 or more, below 2 to the 63")


@dataclass(frozen=True)
class Answer:
    """What a file says of one thing.

    Attributes:
        said: for people.
        values: for programs; plain values, ready for JSON.
    """

    said: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Answers:
    """What a file says.

    Attributes:
        each: of each thing it was asked about.
        several: whether several things could be asked about in that way, be it only one.
    """

    each: tuple[Answer, ...]
    several: bool = False


class Way(Protocol):
    """How files of one kind are asked."""

    noun: str
    """What it is asked about, for people: a picture, a text, a row."""

    takes: str
    """In which forms that can be given, for people."""

    example: str
    """Something to ask about, as text; empty where nothing suggests itself."""

    def is_large(self, data: bytes, where: str) -> bool:
        """Whether a thing should wait for its turn before it is unpacked.

        Raises:
            DataError: if it is none, or too large altogether.
        """

    def ask(self, data: bytes, where: str, run: Run, wish: Wish, *, is_json: bool) -> Answers:
        """Answer for a thing.

        Args:
            data: its bytes.
            where: its name, for messages.
            run: the network.
            wish: how the answer is wanted.
            is_json: whether the bytes are said to be JSON.

        Raises:
            DataError: if it cannot be read.
        """


class Light:
    """A way whose things cost little beside the network."""

    def is_large(self, data: bytes, where: str) -> bool:  # noqa: ARG002
        """Nothing of it need wait for its turn."""
        return False


def run_in_parts(run: Run, inputs: Tensor) -> Tensor:
    """Return a network's outputs for many inputs, some at a time."""
    return torch.cat([run(part) for part in torch.split(inputs, BATCH)])


def tell_classes(outputs: Tensor, names: Sequence[str]) -> list[Answer]:
    """Return the likeliest classes of logits [N, classes]."""
    told = []
    for shares in outputs.double().softmax(1):
        best = shares.topk(min(TOP, len(shares)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        classes = [{"name": names[place], "probability": share} for place, share in pairs]
        said = f"{classes[0]['name']} ({classes[0]['probability']:.1%})"
        told.append(Answer(said, {"class": classes[0]["name"], "classes": classes}))
    return told


def tell_numbers(outputs: Tensor, mean: float, std: float) -> list[Answer]:
    """Return numbers [N, 1] in their own units."""
    values = (outputs.double().flatten() * std + mean).tolist()
    return [Answer(f"{value:.6g}", {"value": value}) for value in values]


def read_file(path: Path) -> bytes:
    """Read a file of the user's.

    Raises:
        DataError: if it cannot be read or has more than `MAX_FILE` bytes.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    return bounded(data, str(path))


def bounded(data: bytes, where: str) -> bytes:
    """Return what was read, unless it is too much.

    Raises:
        DataError: if it has more than `MAX_FILE` bytes.
    """
    if len(data) > MAX_FILE:
        raise DataError(
            f"{where}: has more than {MAX_FILE // 2**20} MiB, the most that is read; make it "
            "smaller"
        )
    return data


def read_json(data: bytes, where: str) -> Any:
    """Read JSON of the user's.

    Raises:
        DataError: if it is none.
    """
    if len(data) > MAX_JSON:
        raise DataError(
            f"{where}: has more than {MAX_JSON // 2**20} MiB of JSON; give less at once"
        )
    try:
        return parse_json(data)
    except ValueError as error:  # also if it is no UTF-8
        raise DataError(f"{where}: cannot be read as JSON ({error})") from None


Facts = TypeVar("Facts")


def read_facts(card: Card, kind: type[Facts]) -> Facts | None:
    """Return what a card says of its inputs; nothing where it lacks any of it.

    Raises:
        RunError: if it says what cannot be.
    """
    try:
        return TypeAdapter(kind).validate_python(dict(card.facts))
    except ValidationError as error:
        first = error.errors()[0]
        if all(each["type"] in ("missing", "dataclass_type") for each in error.errors()):
            return None
        where = ".".join(map(str, first["loc"]))
        raise misfit(card, f"{where}: {first['msg']}") from None
    except NeflError as error:
        raise misfit(card, str(error)) from None


def misfit(card: Card, reason: str) -> RunError:
    """Return the error of a card that does not fit its kind."""
    return RunError(
        f"the file's description of its {card.kind} is wrong ({reason}); export it again"
    )


def check_scales(mean: Sequence[float], std: Sequence[float], count: int) -> None:
    """Refuse means and deviations that do not fit.

    Raises:
        ConfigError: if there are not as many as needed, or they are not finite.
    """
    if len(mean) != count or len(std) != count:
        raise ConfigError(f"{len(mean)} means, {len(std)} deviations: {count} fit")
    if not all(math.isfinite(m) and 0 < s < math.inf for m, s in zip(mean, std, strict=True)):
        raise ConfigError("mean and std: give finite means, and finite deviations above 0")
