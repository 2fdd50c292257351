"""Recipes by the row: one TOML file describes all runs of a table.

A file has `columns`, dotted keys of settings, `settings` that all its rows have in common, and
`[[parts]]`. Each part has a `name` and an `about` in which `{key}` stands for a row's setting,
`rows` of values under the columns, and `settings` of its own. An empty text in a row leaves its
column out.
"""

import re
from collections.abc import Mapping
from typing import Any

from nefl.config.reading import flatten, with_settings
from nefl.errors import ConfigError

_FIELD = re.compile(r"\{([a-z_.]+)\}")


def expand_table(values: Mapping[str, Any], source: str) -> dict[str, dict[str, Any]]:
    """Return the settings of every recipe of a table, by name.

    Args:
        values: the file's content.
        source: the file, for the error message.

    Raises:
        ConfigError: if a row does not fit the columns, or two have one name.
    """
    recipes: dict[str, dict[str, Any]] = {}
    for part in values["parts"]:
        columns = part.get("columns", values.get("columns", []))
        shared = flatten(values.get("settings", {})) | flatten(part.get("settings", {}))
        for row in part["rows"]:
            if len(row) != len(columns):
                raise ConfigError(f"{source}: row {row} has not one value for each of {columns}")
            given = {key: value for key, value in zip(columns, row, strict=True) if value != ""}
            settings = shared | given
            name = _filled(part["name"], settings, source)
            if name in recipes:
                raise ConfigError(f"{source}: two rows are called {name}; tell them apart")
            about = _filled(part["about"], settings, source)
            recipes[name] = with_settings({"about": about}, settings)
    return recipes


def _filled(template: str, settings: Mapping[str, Any], source: str) -> str:
    def value(field: re.Match[str]) -> str:
        if field[1] not in settings:
            raise ConfigError(f"{source}: {template!r} needs {field[1]}, which a row leaves out")
        return str(settings[field[1]])

    return _FIELD.sub(value, template)
