"""From TOML, JSON and flags to a checked configuration."""

import difflib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nefl.config import DeviceConfig, MemberConfig, RunConfig
from nefl.errors import ConfigError
from nefl.files import read_small
from nefl.parsing import parse_json, parse_toml

_LISTED = {"devices": DeviceConfig, "members": MemberConfig}
"""What lists of tables hold, by their keys."""


def config_from(values: Mapping[str, Any], source: str = "config") -> RunConfig:
    """Build and check a configuration.

    Args:
        values: nested settings; what is left out has its default.
        source: where they come from, for the error message.

    Raises:
        ConfigError: naming the first wrong setting and the remedy.
    """
    values = _as_named_now(values, source)
    _check_booleans(values, source)
    try:
        config: RunConfig = _adapter(RunConfig).validate_python(dict(values))
    except ValidationError as error:
        raise ConfigError(f"{source}: {_explain(error)}") from None
    return config


def _as_named_now(values: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return settings with those of earlier versions under their names of today."""
    engine = values.get("engine")
    if not isinstance(engine, Mapping) or "device" not in engine:
        return values
    if "devices" in engine:
        raise ConfigError(
            f"{source}: engine.device is the earlier name of engine.devices; give one of them"
        )
    rest = {key: value for key, value in engine.items() if key != "device"}
    return {**values, "engine": {**rest, "devices": engine["device"]}}


def _check_booleans(values: Mapping[str, Any], source: str) -> None:
    """Refuse true and false for numbers, and numbers for them: Python would take both."""
    defaults = _defaults()
    for key, value in flatten(values).items():
        default = defaults.get(key)
        if not (isinstance(default, int | float) and isinstance(value, int | float)):
            continue
        if isinstance(default, bool) != isinstance(value, bool):
            wanted = "true or false" if isinstance(default, bool) else "a number"
            raise ConfigError(f"{source}: {key} is {str(value).lower()}: give {wanted}")


@lru_cache(maxsize=2)
def _adapter(part: type[Any]) -> TypeAdapter[Any]:
    """Return what reads a part; making one takes as long as reading a hundred."""
    return TypeAdapter(part)


@lru_cache(maxsize=1)
def _defaults() -> dict[str, Any]:
    return flatten(RunConfig().to_dict())


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        known = _keys_beside(first["loc"])
        near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        return f"{key} is not a setting; {hint}"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    return f"{key[:200]} is {first['input']!r:.200}: {first['msg']}"


def _keys_beside(place: tuple[int | str, ...]) -> list[str]:
    part: Any = RunConfig()
    for key in place[:-1]:
        inner = getattr(part, str(key), None)
        if not is_dataclass(inner):
            return [f.name for f in fields(_LISTED[str(key)])] if key in _LISTED else []
        part = inner
    return [f.name for f in fields(part)]


def read_config(path: Path, *, stored: bool = False) -> dict[str, Any]:
    """Read settings from a TOML or JSON file.

    Args:
        path: the file.
        stored: whether it lies in a run's folder, which may be a stranger's: links, pipes and
            endless files are then refused. What the user names may be any of these.

    Raises:
        ConfigError: if the file is missing or is neither.
    """
    try:
        text = read_small(path) if stored else path.read_text(encoding="utf-8")
        values = parse_json(text) if path.suffix == ".json" else parse_toml(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is not valid {path.suffix[1:] or 'TOML'} ({error})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a table of settings")
    return values


def with_settings(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with some replaced, given by dotted keys such as `local.epochs`."""
    result: dict[str, Any] = deepcopy(dict(values))
    for key, value in settings.items():
        *path, last = key.split(".")
        place = result
        for part in path:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{key} is not a setting; {part} holds a value, not a table")
            place = inner
        place[last] = value
    return result


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def parse_setting(text: str) -> tuple[str, Any]:
    """Read `key=value`; the value is TOML where it can be, otherwise the text itself.

    Raises:
        ConfigError: if there is no key.
    """
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"{text!r}: give key=value, as in local.epochs=1")
    try:
        return key.strip(), parse_toml(f"value = {value}")["value"]
    except ValueError:
        return key.strip(), value.strip()


def parse_member(text: str) -> MemberConfig:
    """Read a submodel, as in `width = 0.5, blocks = [1, 1, 2]`; an empty text is the full model.

    Raises:
        ConfigError: if that is not what the text says.
    """
    try:
        member = parse_toml(f"member = {{ {text} }}")["member"]
        found: MemberConfig = _adapter(MemberConfig).validate_python(member)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigError(f"member {text!r}: {key}: {first['msg']}") from None
    except ValueError:
        raise ConfigError(
            f"member {text!r}: give its settings, as in 'width = 0.5, blocks = [1, 1, 2]'"
        ) from None
    return found
