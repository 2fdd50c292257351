"""Programs that are kept running: started again whenever they end, with growing pauses."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from nefl.engines.processes import end_processes
from nefl.errors import RunError

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
"""Seconds before a program that ended is started again: twice as long each time, up to this."""

STEADY_SECONDS = 60.0
"""A program that ran so long has recovered: its next end counts as the first."""

GRACE_SECONDS = 10.0
"""How long a program may take to end when it is asked to."""

BAD_OPTIONS = 2
"""The exit code of a program whose options no further start would mend."""

Tell = Callable[[str], None]


class Kept:
    """A program that is kept running.

    Args:
        name: what to call it.
        command: makes its command line, anew for each start.
        environment: its environment.
        tell: gets a line when it is started again.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        environment: Mapping[str, str],
        tell: Tell,
    ) -> None:
        self.name = name
        self.early_ends = 0
        self._command = command
        self._environment = environment
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._due = 0.0

    @property
    def alive(self) -> bool:
        """Whether it is running."""
        return self._process is not None and self._process.poll() is None

    def look(self) -> int | None:
        """Start it if it is time to; return its exit code if it has just ended.

        Raises:
            RunError: if it does not take its options.
        """
        now = time.monotonic()
        if self._process is None:
            if now >= self._due:
                self._process = subprocess.Popen(
                    list(self._command()),
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for whoever keeps it, who ends it in order
                )
                self._started = now
            return None
        code = self._process.poll()
        if code is not None:
            self._process = None
            if code == BAD_OPTIONS:
                raise RunError(f"the {self.name} does not take its options; it says why above")
            self._plan(code, now - self._started)
        return code

    def _plan(self, code: int, lived: float) -> None:
        """Decide when it is started again: at once if it ended as it should, else after a pause."""
        pause = 0.0
        if code or lived < FIRST_PAUSE:
            self.early_ends = 1 if lived >= STEADY_SECONDS else self.early_ends + 1
            pause = min(FIRST_PAUSE * 2 ** (self.early_ends - 1), LONGEST_PAUSE)
        self._due = time.monotonic() + pause
        self._tell(f"the {self.name} ended (exit code {code}); starting it again in {pause:g} s")

    def end(self) -> None:
        """End it, and all it has started."""
        if self._process is not None:
            end_processes([self._process], grace=GRACE_SECONDS)
            self._process = None
