"""JSON and TOML from files of others: whatever is wrong with them is a ValueError."""

import json
import tomllib
from typing import Any

MAX_DEPTH = 64
"""Tables within tables; what is nested deeper could not be copied, compared or shown either."""


def parse_json(text: str | bytes) -> Any:
    """Read JSON.

    Raises:
        ValueError: if it is none, or nested too deeply.
    """
    try:
        return _shallow(json.loads(text))
    except RecursionError:
        raise ValueError(f"nested in more than {MAX_DEPTH} levels") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Read TOML.

    Raises:
        ValueError: if it is none, or nested too deeply.
    """
    try:
        content: dict[str, Any] = _shallow(tomllib.loads(text))
    except RecursionError:
        raise ValueError(f"nested in more than {MAX_DEPTH} levels") from None
    return content


def _shallow(content: Any) -> Any:
    level = [content]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for part in level
            if isinstance(part, dict | list)
            for inner in (part.values() if isinstance(part, dict) else part)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return content
    raise ValueError(f"nested in more than {MAX_DEPTH} levels")
