"""Complete, named configurations: a TOML file each, or a row of a table of them."""

from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from nefl.config import RunConfig
from nefl.config.reading import config_from, read_config
from nefl.errors import ConfigError
from nefl.recipes.expansion import expand_table

_FOLDER = Path(str(resources.files(__name__)))


@lru_cache(maxsize=1)
def _recipes() -> dict[str, dict[str, Any]]:
    """Read all recipes that come with nefl, by name."""
    found = {path.stem: read_config(path) for path in sorted(_FOLDER.glob("*.toml"))}
    for path in sorted((_FOLDER / "tables").glob("*.toml")):
        rows = expand_table(read_config(path), str(path))
        if twice := found.keys() & rows.keys():
            raise ConfigError(f"{path}: {min(twice)} is the name of another recipe too")
        found |= rows
    return found


def recipe_names() -> list[str]:
    """List the recipes that come with nefl: single ones by name, then tables in their order."""
    return list(_recipes())


def is_recipe(name: str) -> bool:
    """Tell whether a name is that of a recipe, or of a file that may hold one."""
    return name in _recipes() or Path(name).suffix in (".toml", ".json")


def recipe_values(recipe: str) -> dict[str, Any]:
    """Return the settings of a recipe, given its name or the path of a TOML or JSON file.

    Raises:
        ConfigError: if there is no such recipe or file.
    """
    if recipe in _recipes():
        return deepcopy(_recipes()[recipe])
    path = Path(recipe)
    if path.suffix in (".toml", ".json") or path.exists():
        return read_config(path)
    near = get_close_matches(recipe, recipe_names(), n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise ConfigError(f"recipe {recipe!r} is neither a file nor listed by `nefl recipes`{hint}")


def load_recipe(recipe: str) -> RunConfig:
    """Return a recipe as a configuration."""
    return config_from(recipe_values(recipe), recipe)
