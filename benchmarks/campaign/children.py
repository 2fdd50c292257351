"""A small run in a process of its own, forked from one that has imported everything already."""

import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import nefl
from nefl.artifacts.notes import CONFIG, SUMMARY
from nefl.config.reading import config_from
from nefl.errors import NeflError
from nefl.running.assembly import assemble

ROUNDS = 6
REFUSED = 2
"""Exit code of a child whose run was refused; its last words say why."""


def settings(engine: str) -> dict[str, Any]:
    """Return the settings of a run of about a second."""
    workers = {"name": "workers", "workers": 2} if engine == "workers" else {"name": "serial"}
    return {
        "rounds": ROUNDS,
        "model": {"name": "resnet8", "method": "nefl-wd"},
        "data": {"name": "digits", "train": 200, "test": 100, "cache": cache_folder()},
        "clients": {"count": 20, "per_round": 4},
        "local": {"epochs": 1, "batch_size": 8},
        "server": {"evaluate_every": 2, "checkpoint_every": 1, "keep": 1},
        "engine": {**workers, "device": "cpu"},
    }


@cache
def cache_folder() -> str:
    """Return a folder for decoded data that is this process's own."""
    return mkdtemp(prefix="nefl-campaign-")


@cache
def import_all() -> None:
    """Import what a run imports on its way, so that children need not. Nothing is trained here:
    torch's gradients do not outlive a fork.
    """
    assemble(config_from(settings("serial")))
    importlib.import_module("torch._dynamo")  # which every optimiser loads


@dataclass(frozen=True)
class Child:
    """A process at work.

    Attributes:
        pid: its number; it leads a session of its own.
        words: the file that it writes errors to.
    """

    pid: int
    words: Path

    def wait(self, seconds: float | None = None) -> int | None:
        """Return its exit code once it has ended, a signal as a negative one; None if it has not.

        Args:
            seconds: how long to wait at most.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            if end is not None and time.monotonic() >= end:
                return None
            time.sleep(0.002)

    def kill(self) -> bool:
        """Kill it; return whether it was still alive."""
        os.kill(self.pid, signal.SIGKILL)
        return self.wait() == -signal.SIGKILL

    @property
    def workers(self) -> list[int]:
        """Return the numbers of the processes that it has started."""
        try:
            listed = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii")
        except OSError:
            return []
        return [int(number) for number in listed.split()]


def fork(work: Callable[[], object], words: Path) -> Child:
    """Start a child that does some work, then ends with 0, or with `REFUSED` for a `NeflError`.

    Whatever else it raises ends it with 1.
    """
    import_all()
    gc.freeze()  # pages that are not touched stay shared
    pid = os.fork()
    if pid:
        return Child(pid, words)
    code = 1
    try:
        os.setsid()
        target = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, 1)
        os.dup2(target, 2)
        work()
        code = 0
    except NeflError as error:
        os.write(2, f"nefl: error: {error}\n".encode())
        code = REFUSED
    except BaseException:  # the parent reads it
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
    raise AssertionError("unreachable")


def go_on(run: Path, engine: str) -> dict[str, Any]:
    """Start a run, or resume it if it has begun; return its summary."""
    if (run / CONFIG).exists():
        return dict(nefl.resume(run).summary)
    return dict(nefl.train(settings(engine), run).summary)


@dataclass(frozen=True)
class Undisturbed:
    """What a run comes to if nothing happens, and the seconds it takes."""

    state_sha256: str
    accuracy: list[float]
    seconds: float


@cache
def undisturbed(engine: str) -> Undisturbed:
    """Run once in peace."""
    place = Path(mkdtemp(prefix="nefl-campaign-"))
    seconds = 0.0
    for name in ("first", "second"):  # the first one also decodes the data
        started = time.monotonic()
        child = fork(lambda name=name: go_on(place / name, engine), place / "words")  # type: ignore[misc]
        if child.wait() != 0:
            sys.exit(f"the undisturbed run failed: {child.words.read_text(encoding='utf-8')}")
        seconds = time.monotonic() - started
    found = read_summary(place / "second")
    return Undisturbed(found["state_sha256"], found["accuracy"], seconds)


def read_summary(run: Path) -> dict[str, Any]:
    """Return what a finished run wrote."""
    found: dict[str, Any] = json.loads((run / SUMMARY).read_text(encoding="utf-8"))
    return found


def check_finished(run: Path, engine: str) -> None:
    """Raise unless a run came to what it would have come to in peace, and left nothing behind."""
    found, wanted = read_summary(run), undisturbed(engine)
    assert found["state_sha256"] == wanted.state_sha256, f"{run}: other weights"
    assert found["accuracy"] == wanted.accuracy, f"{run}: other accuracies"
    assert found["rounds"] == ROUNDS, f"{run}: {found['rounds']} rounds"
    left = list(run.rglob("*.part"))
    assert not left, f"{run}: {left} is left"
