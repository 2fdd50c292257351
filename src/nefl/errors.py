"""What nefl raises on purpose: each message names the culprit, what was expected and the remedy."""

import difflib
from collections.abc import Iterable


class NeflError(Exception):
    """Base of all errors that are the input's fault, not nefl's; the command line exits with 2."""


class ConfigError(NeflError, ValueError):
    """A setting, a recipe or a combination of them that cannot be run."""


class OwnCodeError(ConfigError):
    """A function of the user's that failed; the cause (`__cause__`) is what it raised."""


class NestingError(NeflError, ValueError):
    """A family whose submodels are not leading corners of one global model."""


class UpdateError(NeflError, ValueError):
    """A client's update that must not be averaged."""


class DataError(NeflError, ValueError):
    """Data that is missing, damaged or not what it claims to be."""


class RunError(NeflError, RuntimeError):
    """A run that cannot be started, resumed or finished."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for a name that is not in a table, with the nearest that is."""
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return ConfigError(f"{kind} {name!r} is unknown{hint} There are: {', '.join(known)}")
