"""A user's own functions, named in a configuration as `package.module:function`."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nefl.errors import ConfigError, OwnCodeError
from nefl.own_code import own_code


def is_reference(name: str) -> bool:
    """Whether a name means a function of the user's."""
    return ":" in name


def import_function(reference: str) -> Callable[..., Any]:
    """Import `package.module:function`, also from the current folder.

    Raises:
        ConfigError: if there is no such function, or its module fails while it is imported.
    """
    module, _, name = reference.partition(":")
    # An installed command, unlike `python -m`, does not look in the current folder.
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        with own_code(f"{reference}: importing {module}"):
            found = importlib.import_module(module)
        function = getattr(found, name)
    except (OwnCodeError, AttributeError) as error:
        if isinstance(error, OwnCodeError) and not _is_absent(module, error.__cause__):
            raise
        raise ConfigError(
            f"{reference}: cannot be imported ({error.__cause__ or error}); give "
            "package.module:function, and see that the package is installed or in the current "
            "folder"
        ) from error
    if not callable(function):
        raise ConfigError(f"{reference}: is {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]


def _is_absent(module: str, error: BaseException | None) -> bool:
    """Whether a module is not there, rather than there and failing."""
    if isinstance(error, ModuleNotFoundError):
        return f"{module}.".startswith(f"{error.name}.")  # and not one that it needs
    return not module or module.startswith(".")  # which cannot be imported anyhow
