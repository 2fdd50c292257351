"""Trying files one after the other in a process that may die, hang or swell without harm."""

import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nefl.errors import NeflError

SECONDS = 60.0
"""Wall time after which a file counts as one that hangs."""

MEMORY = 2 * 2**30
"""Address space that a process may take besides what it had when it was forked."""


@dataclass(frozen=True)
class Outcome:
    """What came of one file.

    Attributes:
        kind: `read`, `refused` (one of nefl's own errors), `raised`, `crashed` or `hung`.
        detail: the error, or the signal.
        seconds: how long it took.
        growth: bytes by which the process was larger at its peak than before.
    """

    kind: str
    detail: str = ""
    seconds: float = 0.0
    growth: int = 0


def try_all(attempt: Callable[[int], object], count: int) -> list[Outcome]:
    """Call `attempt` with 0, 1, … in a fork of this process; go on in another where one dies."""
    found: list[Outcome] = []
    while len(found) < count:
        found += _in_a_fork(attempt, len(found), count)
    return found


def _in_a_fork(attempt: Callable[[int], object], first: int, count: int) -> list[Outcome]:
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        try:
            _work(attempt, first, count, writing)
        finally:
            os._exit(0)
    os.close(writing)
    found: list[Outcome] = []
    hung = False
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        for line in _lines(pipe.fileno()):
            if line is None:
                hung = True
                os.kill(process, signal.SIGKILL)
                break
            found.append(Outcome(**json.loads(line)))
    _, status = os.waitpid(process, 0)
    if hung:
        found.append(Outcome("hung", seconds=SECONDS))
    elif os.WIFSIGNALED(status):
        found.append(Outcome("crashed", signal.Signals(os.WTERMSIG(status)).name))
    elif first + len(found) < count:
        found.append(Outcome("crashed", f"exit {os.waitstatus_to_exitcode(status)}"))
    return found


def _lines(descriptor: int) -> Iterator[bytes | None]:
    """Yield lines as they come; None once nothing came for too long."""
    left = b""
    while True:
        if not select.select([descriptor], [], [], SECONDS)[0]:
            yield None
            return
        chunk = os.read(descriptor, 65536)
        if not chunk:
            return
        *lines, left = (left + chunk).split(b"\n")
        yield from lines


def _work(attempt: Callable[[int], object], first: int, count: int, writing: int) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    _limit_memory()
    for number in range(first, count):
        before, started = _peak(), time.monotonic()
        kind, detail = _outcome(attempt, number)
        entry = {
            "kind": kind,
            "detail": detail[:300],
            "seconds": round(time.monotonic() - started, 3),
            "growth": _peak() - before,
        }
        os.write(writing, json.dumps(entry).encode() + b"\n")


def _outcome(attempt: Callable[[int], object], number: int) -> tuple[str, str]:
    try:
        attempt(number)
    except NeflError:
        return "refused", ""
    except BaseException as error:  # whatever it is, it is what came of the file
        return "raised", f"{type(error).__name__}: {error}"
    return "read", ""


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    now = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
