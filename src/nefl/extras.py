"""Optional packages: imported where they are needed, named with their remedy where missing."""

import importlib
from types import ModuleType

from nefl.errors import ConfigError


def need(module: str, extra: str) -> ModuleType:
    """Import a module of an optional package.

    Args:
        module: its dotted name.
        extra: the extra of nefl that brings it.

    Raises:
        ConfigError: if it is not installed, with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ConfigError(
            f"{package} is not installed or cannot be loaded ({error}); install it with: "
            f"pip install 'nefl[{extra}]'"
        ) from None
