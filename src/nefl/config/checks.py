"""What all parts of a configuration have in common."""

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict

from nefl.errors import ConfigError


class Part:
    """A part of the tree: unknown keys are refused."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)


def listed(value: Any) -> Any:
    """Return one name as a list of it; anything else as it is."""
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(listed)]
"""Names in a list, or one without."""


def require(holds: bool, message: str) -> None:
    """Raise a `ConfigError` unless something holds."""
    if not holds:
        raise ConfigError(message)
