"""Processes that were started here: ended with all that they started, and with whoever did."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def end_with_starter(number: signal.Signals = signal.SIGKILL) -> None:
    """Let this process get a signal when the one that started it has ended (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def end_processes(processes: "Sequence[subprocess.Popen[bytes]]", *, grace: float) -> None:
    """End processes and all they have started.

    Args:
        processes: the processes.
        grace: seconds that they have to end by themselves, after they were asked to; none if they
            are killed.
    """
    # Flower's programs start others in sessions of their own, which would live on.
    family = [pid for process in processes for pid in descendants(process.pid)]
    if grace:
        for process in processes:
            if process.poll() is None:
                send_signal(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    for pid in (*(process.pid for process in processes), *family):
        send_signal(pid, signal.SIGKILL)
    for process in processes:
        process.wait()


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            # The second field is the program's name in brackets, which may hold spaces.
            parent = int(status.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(status.parent.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a process a signal, if it is still there and may be sent one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
