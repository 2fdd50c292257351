"""Processes of workers, which import what they need while a run is still being prepared."""

import os
import socket
import subprocess
import sys
from collections import deque
from multiprocessing.connection import Connection

from nefl.engines.sharing import make_shared_file
from nefl.errors import RunError

Started = tuple["subprocess.Popen[bytes]", Connection]
"""A process, and the connection over which it is told what to do."""


class WaitingWorkers:
    """Processes for workers, and the memory that all of them share.

    Args:
        count: how many are started now, before anybody has a job for them.

    Raises:
        RunError: if they cannot be started.
    """

    def __init__(self, count: int = 0) -> None:
        self.descriptor = make_shared_file()
        self._waiting: deque[Started] = deque()
        try:
            for _ in range(count):
                self._waiting.append(self._start())
        except RunError:
            self.close()
            raise

    def take(self) -> Started:
        """Return a process that waits, or a new one; its taker ends it.

        Raises:
            RunError: if it cannot be started.
        """
        while self._waiting:
            process, connection = self._waiting.popleft()
            if process.poll() is None:
                return process, connection
            connection.close()
        return self._start()

    def close(self) -> None:
        """End those that nobody took, and give the shared memory back."""
        while self._waiting:
            end_worker(*self._waiting.popleft())
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _start(self) -> Started:
        mine, theirs = socket.socketpair()
        with theirs:
            try:
                process = subprocess.Popen(
                    [
                        sys.executable,
                        "-P",  # not the current folder: a file there must not pass for a library
                        "-m",
                        "nefl.engines.worker",
                        str(theirs.fileno()),
                        str(self.descriptor),
                    ],
                    pass_fds=(theirs.fileno(), self.descriptor),
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # what a client's code prints must not mix with our output
                    start_new_session=True,
                )
            except OSError as error:
                mine.close()
                raise RunError(f"worker processes cannot be started ({error.strerror})") from error
        return process, Connection(mine.detach())


def end_worker(process: "subprocess.Popen[bytes]", connection: Connection) -> None:
    """End a worker's process at once."""
    connection.close()
    process.kill()
    process.wait()
