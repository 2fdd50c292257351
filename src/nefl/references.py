"""A user's own functions, named in a configuration as `package.module:function`."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nefl.errors import ConfigError


def is_reference(name: str) -> bool:
    """Whether a name means a function of the user's."""
    return ":" in name


def import_function(reference: str) -> Callable[..., Any]:
    """Import `package.module:function`, also from the current folder.

    Raises:
        ConfigError: if there is no such function.
    """
    module, _, name = reference.partition(":")
    # An installed command, unlike `python -m`, does not look in the current folder.
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{reference}: cannot be imported ({error}); give package.module:function, "
            "and see that the package is installed or in the current folder"
        ) from error
    if not callable(function):
        raise ConfigError(f"{reference}: is {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]
