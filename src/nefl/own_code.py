"""A user's own code: called in one place, so that its failures are told as its own."""

import inspect
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from nefl.errors import ConfigError, NeflError, OwnCodeError

LONGEST_TEXT = 2_000
"""Letters of an error's text that are told: it goes into logs, once for each failure."""

_NEFL = str(Path(__file__).parent)
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


def call_own(reference: str, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a user's function with keyword arguments and return what it returns.

    Raises:
        ConfigError: if it does not take these arguments.
        OwnCodeError: if it fails, from what it raised. What nefl raised within it stays as it is.
    """
    check_arguments(reference, function, arguments)
    with own_code(f"{reference} ({place_of(function)})"):
        return function(**arguments)


@contextmanager
def own_code(who: str) -> Iterator[None]:
    """Tell a failure of what runs meanwhile as the user's code's.

    Args:
        who: the function at fault, for people.

    Raises:
        OwnCodeError: from what was raised, unless that names its culprit itself.
    """
    try:
        yield
    except NeflError:
        raise
    except (Exception, SystemExit) as error:  # code that ends the process has failed too
        raise OwnCodeError(f"{who} failed: {describe(error)}") from error


def check_arguments(
    reference: str, function: Callable[..., Any], arguments: Mapping[str, Any]
) -> None:
    """Raise unless a user's function takes these keyword arguments.

    Raises:
        ConfigError: naming it and what it takes.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # one that is written in C does not tell
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        given = ", ".join(arguments) or "no arguments"
        raise ConfigError(
            f"{reference} ({place_of(function)}): takes {signature}, and is called with {given} "
            f"({error}); give it these as keyword arguments"
        ) from error


def place_of(code: Callable[..., Any]) -> str:
    """Return the file and line of a function or class, as far as they are known."""
    try:
        unwrapped = inspect.unwrap(code)
        file = inspect.getsourcefile(unwrapped) or inspect.getfile(unwrapped)
        return f"{file}, line {inspect.getsourcelines(unwrapped)[1]}"
    except (TypeError, OSError):
        return f"in {getattr(code, '__module__', 'an unknown place')}"


def describe(error: BaseException) -> str:
    """Say an error in a line, with the last place in a user's own file that it passed."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, NeflError):
        return text
    if len(text) > LONGEST_TEXT:
        text = f"{text[:LONGEST_TEXT]} …"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    if not own:
        return text
    return f"{text} ({Path(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name})"


def own_tracebacks(error: NeflError) -> list[str]:
    """Return the tracebacks of the user's code that an error tells of, in whatever process."""
    cause = error.__cause__ if isinstance(error, OwnCodeError) else None
    here = [] if cause is None else [_traceback(cause)]
    return [*here, *getattr(error, "__notes__", ())]


def _traceback(error: BaseException) -> str:
    """Return an error's traceback, from where nefl called the user's code."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and _is_nefl(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _is_nefl(file: str) -> bool:
    return file.startswith(_NEFL)


def _is_own(file: str) -> bool:
    return not (_is_nefl(file) or file.startswith((*_INSTALLED, "<")))
