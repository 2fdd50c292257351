"""A bounded number of threads for work that may wait long for others."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Carriers(Generic[Result]):
    """Threads that are started when there is work, and end when there is none.

    They are daemons, unlike those of an executor: work that never ends must not keep the process
    alive.

    Args:
        most: how many there are at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._running = 0
        self._jobs: deque[tuple[Future[Result], Callable[[], Result]]] = deque()
        self._lock = threading.Lock()

    def submit(self, job: Callable[[], Result]) -> "Future[Result]":
        """Do some work as soon as a thread is free; whoever asks for its result gets its error."""
        outcome: Future[Result] = Future()
        with self._lock:
            self._jobs.append((outcome, job))
            another = self._running < self._most
            self._running += another
        if another:
            threading.Thread(target=self._work, daemon=True, name="reply").start()
        return outcome

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._running -= 1
                    return
                outcome, job = self._jobs.popleft()
            if not outcome.set_running_or_notify_cancel():
                continue
            try:
                outcome.set_result(job())
            except BaseException as error:
                outcome.set_exception(error)
