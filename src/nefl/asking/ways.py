"""Which way a file is asked: by what sort of task its card names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from nefl.artifacts.card import Card
from nefl.asking.arrays import Arrays, Series, SeriesFacts
from nefl.asking.pictures import PictureFacts, Pictures
from nefl.asking.tables import TableFacts, Tables
from nefl.asking.texts import Completion, TextFacts, Texts
from nefl.asking.way import Way, read_facts


@dataclass(frozen=True)
class Kind:
    """How files of one kind of task are asked.

    Attributes:
        facts: what a card has to say of it.
        way: from a card and those facts to the way.
    """

    facts: type[Any]
    way: Callable[[Card, Any], Way]


KINDS: Mapping[str, Kind] = {
    "image-classification": Kind(PictureFacts, Pictures),
    "text-classification": Kind(TextFacts, Texts),
    "next-token": Kind(TextFacts, Completion),
    "table-classification": Kind(TableFacts, Tables),
    "table-regression": Kind(TableFacts, Tables),
    "series-classification": Kind(SeriesFacts, Series),
    "series-regression": Kind(SeriesFacts, Series),
}
"""Kinds of tasks, by their names on a card."""


def way_of(card: Card) -> Way:
    """Return how a file is asked: as its kind is, or by arrays where its card does not say enough.

    Raises:
        RunError: if the card says what cannot be.
    """
    kind = KINDS.get(card.kind)
    facts = None if kind is None else read_facts(card, kind.facts)
    return Arrays(card) if kind is None or facts is None else kind.way(card, facts)


def card_facts(kind: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a card shall say of a task: of a known kind what is needed, else all it tells.

    What else a task knows, such as whose its examples are, is nobody's business there.
    """
    if kind not in KINDS:
        return dict(facts)
    needed = [field.name for field in fields(KINDS[kind].facts)]
    return {name: facts[name] for name in needed if name in facts}
