"""Complete, named configurations: one TOML file each."""

from importlib import resources
from pathlib import Path
from typing import Any

from nefl.config import RunConfig
from nefl.config_reading import config_from, read_config
from nefl.errors import ConfigError

_FOLDER = Path(str(resources.files(__name__)))


def recipe_names() -> list[str]:
    """List the recipes that come with nefl."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def recipe_values(recipe: str) -> dict[str, Any]:
    """Return the settings of a recipe, given its name or the path of a TOML or JSON file.

    Raises:
        ConfigError: if there is no such recipe or file.
    """
    if recipe in recipe_names():
        return read_config(_FOLDER / f"{recipe}.toml")
    path = Path(recipe)
    if path.suffix in (".toml", ".json") or path.exists():
        return read_config(path)
    raise ConfigError(
        f"recipe {recipe!r} is neither a file nor one of: {', '.join(recipe_names())}"
    )


def load_recipe(recipe: str) -> RunConfig:
    """Return a recipe as a configuration."""
    return config_from(recipe_values(recipe), recipe)
