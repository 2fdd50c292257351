"""Optional packages: imported where they are needed, named with their remedy where missing."""

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from nefl.errors import ConfigError


def need(module: str, extra: str | None = None) -> ModuleType:
    """Import a module of an optional package.

    Args:
        module: its dotted name.
        extra: the extra of nefl that brings it, if one does.

    Raises:
        ConfigError: if it is not installed, with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        wanted = package if extra is None else f"'nefl[{extra}]'"
        raise ConfigError(
            f"{package} is not installed or cannot be loaded ({error}); install it with: "
            f"pip install {wanted}"
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the translators' advice to their developers from users."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
