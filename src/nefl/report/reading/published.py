"""What others reported for a run's settings: its own note, or that of a recipe like it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from nefl.config.reading import flatten
from nefl.recipes import load_recipe, recipe_names
from nefl.report.reading.meant import as_meant
from nefl.report.reading.runs import Run

PUBLISHED = "accuracy"
"""What is published, and what runs must be measured by for it to stand beside them."""
ALIKE = ("model.", "data.name", "partition.", "clients.count")
"""Settings in which a run must equal a recipe for the recipe's figures to be set beside it."""


@dataclass(frozen=True)
class Published:
    """Published accuracies, 0 to 1.

    Attributes:
        worst: that of the smallest submodel.
        average: the mean over submodels.
        source: where they stand.
        settings: those of the recipe that they are for, as meant; empty if none of nefl's is known.
    """

    worst: float | None
    average: float | None
    source: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def published_for(run: Run) -> Published | None:
    """Return the figures published for a run's settings, if any are known; they are accuracies.

    Of several recipes alike, that with the run's own figures is taken, else the nearest.
    """
    if run.metric.name != PUBLISHED:
        return None
    own, alike, meant = _figures(run.settings), [], as_meant(run.settings)
    for settings in _recipes_with_figures():
        keys = settings.keys() | meant.keys()
        differing = {key for key in keys if settings.get(key) != meant.get(key)}
        if not any(key.startswith(ALIKE) for key in differing):
            figures = any(key.startswith("published.") for key in differing)
            alike.append((figures, len(differing), settings))
    if not alike:
        return own
    figures, _, settings = min(alike, key=lambda found: found[:2])
    found = own if figures and own is not None else _figures(settings)
    return None if found is None else replace(found, settings=settings)


@lru_cache(maxsize=1)
def _recipes_with_figures() -> tuple[dict[str, Any], ...]:
    found = (as_meant(flatten(load_recipe(name).to_dict())) for name in recipe_names())
    return tuple(settings for settings in found if _figures(settings) is not None)


def _figures(settings: Mapping[str, Any]) -> Published | None:
    worst, average = (_share(settings.get(f"published.{key}")) for key in ("worst", "average"))
    if worst is None and average is None:
        return None
    return Published(worst, average, str(settings.get("published.source", "")))


def _share(percent: Any) -> float | None:
    known = isinstance(percent, int | float) and not isinstance(percent, bool)
    return percent / 100 if known else None
