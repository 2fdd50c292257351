"""What all parts of a configuration have in common."""

from typing import ClassVar

from pydantic import ConfigDict

from nefl.errors import ConfigError


class Part:
    """A part of the tree: unknown keys are refused."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)


def require(holds: bool, message: str) -> None:
    """Raise a `ConfigError` unless something holds."""
    if not holds:
        raise ConfigError(message)
