"""What others reported for a run's settings: its own note, or that of a recipe like it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nefl.recipes import load_recipe, recipe_names
from nefl.report.runs import Run, flatten

ALIKE = ("model.", "data.name", "partition.", "clients.count")
"""Settings in which a run must equal a recipe for the recipe's figures to be set beside it."""


@dataclass(frozen=True)
class Published:
    """Published accuracies, 0 to 1, and where they stand."""

    worst: float | None
    average: float | None
    source: str


def published_for(run: Run) -> Published | None:
    """Return the figures published for a run's settings, if any are known."""
    own = _figures(run.settings)
    if own is not None:
        return own
    for settings in _recipes_with_figures():
        alike = (k for k in settings.keys() | run.settings.keys() if k.startswith(ALIKE))
        if all(settings.get(key) == run.settings.get(key) for key in alike):
            return _figures(settings)
    return None


@lru_cache(maxsize=1)
def _recipes_with_figures() -> tuple[dict[str, Any], ...]:
    found = (flatten(load_recipe(name).to_dict()) for name in recipe_names())
    return tuple(settings for settings in found if _figures(settings) is not None)


def _figures(settings: Mapping[str, Any]) -> Published | None:
    worst, average = (_share(settings.get(f"published.{key}")) for key in ("worst", "average"))
    if worst is None and average is None:
        return None
    return Published(worst, average, str(settings.get("published.source", "")))


def _share(percent: Any) -> float | None:
    known = isinstance(percent, int | float) and not isinstance(percent, bool)
    return percent / 100 if known else None
