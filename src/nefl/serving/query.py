"""What a request asks for besides its body: who shall answer, and how."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from nefl.asking.way import Wish
from nefl.elastic.budget import Budget, parse_budget
from nefl.errors import ConfigError
from nefl.web.callers import Refusal

ECHO = 100
"""Characters of a query that an answer may repeat."""

_WISHES: dict[str, Callable[[str], Any]] = {"length": int, "temperature": float, "seed": int}
_KNOWN = ("submodel", "fits", *_WISHES)


@dataclass(frozen=True)
class Asked:
    """What a request asks for.

    Attributes:
        submodel: which one answers; the largest if left out.
        budget: what the answer may cost.
        wish: how the answer is wanted.
    """

    submodel: int | None
    budget: Budget | None
    wish: Wish


def read_query(text: str) -> Asked:
    """Read `submodel=2`, `fits=latency<5ms`, `length=50&temperature=0.8&seed=1`.

    Raises:
        Refusal: if it says something else.
    """
    try:
        pairs = parse_qsl(text, strict_parsing=bool(text), max_num_fields=8)
    except ValueError:
        raise Refusal(
            400, "the query cannot be read; give submodel=2 or fits=latency<5ms"
        ) from None
    asked = dict(pairs)
    for key in asked.keys() - set(_KNOWN):
        raise Refusal(400, f"{key[:ECHO]!r} cannot be asked for; there is {', '.join(_KNOWN)}")
    if len(asked) < len(pairs):
        raise Refusal(400, "give submodel, fits and each other wish once")
    number = asked.get("submodel")
    if number is not None and not (is_number(number) and len(number) < 6):
        raise Refusal(400, f"submodel {number[:ECHO]!r} is no number")
    if len(asked.get("fits", "")) > ECHO:
        raise Refusal(400, f"fits {asked['fits'][:ECHO]!r}... has more than {ECHO} characters")
    try:
        budget = parse_budget(asked["fits"]) if "fits" in asked else None
        wish = Wish(**{key: _read_wish(key, asked[key]) for key in _WISHES if key in asked})
    except ConfigError as error:
        raise Refusal(400, str(error)) from None
    if number is not None and budget is not None:
        raise Refusal(400, "give one of submodel and fits")
    return Asked(None if number is None else int(number), budget, wish)


def _read_wish(key: str, text: str) -> Any:
    try:
        if text.isascii() and len(text) <= 20:
            return _WISHES[key](text)
    except ValueError:
        pass
    raise Refusal(400, f"{key} {text[:ECHO]!r} is no number")


def is_number(text: str) -> bool:
    """Whether a text is a whole number in plain digits."""
    return text.isascii() and text.isdecimal()  # digits of other scripts are decimal, too
