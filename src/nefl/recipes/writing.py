"""A configuration as TOML, to be read, changed and run again."""

import json
from collections.abc import Mapping
from typing import Any

from nefl.config import RunConfig


def to_toml(config: RunConfig) -> str:
    """Write all settings of a run, defaults included; what is left open is left out."""
    return "\n".join(_table(config.to_dict(), "")).strip() + "\n"


def _table(values: Mapping[str, Any], name: str) -> list[str]:
    lines = [
        f"{_key(key)} = {_value(value)}"
        for key, value in values.items()
        if value is not None and not isinstance(value, Mapping) and not _is_tables(value)
    ]
    if lines and name:
        lines = ["", f"[{name}]", *lines]
    for key, value in values.items():
        inner = f"{name}.{_key(key)}" if name else _key(key)
        if isinstance(value, Mapping):
            lines += _table(value, inner)
        elif _is_tables(value):
            for each in value:
                lines += ["", f"[[{inner}]]"]
                lines += [f"{_key(k)} = {_value(v)}" for k, v in each.items() if v is not None]
    return lines


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _key(key: str) -> str:
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if plain else json.dumps(key)


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        inner = (f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return f"{{ {', '.join(inner)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    # JSON writes texts, numbers and truth values as TOML does; only DEL must be escaped there too.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
