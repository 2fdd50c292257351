"""Workers as copies of this process, where loading torch anew is not the point of a test."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import torch

from nefl.engines import worker


class Forked:
    """Stands in for `subprocess.Popen` of a worker: the same program, loaded already."""

    returncode: int | None = None

    def __init__(self, command: Sequence[str], **_: Any) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            try:
                torch.seed()  # a new process knows nothing of the numbers drawn here
                sys.argv = [*command[3:]]
                worker.main()
            finally:
                os._exit(0)

    def kill(self) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


PROCESSES = SimpleNamespace(Popen=Forked, DEVNULL=subprocess.DEVNULL)
"""What a workers engine knows of `subprocess`, with such copies."""
