"""Progress of a run: a live bar on a terminal, plain lines elsewhere."""

from collections.abc import Sequence
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from nefl.rounds import Observer, RoundReport
from nefl.server.evaluate import told
from nefl.state import Evaluation, ServerState
from nefl.wording import show_duration as show_duration
from nefl.wording import show_loss

LINE_SECONDS = 10
"""Seconds between plain lines, where no evaluation has something to say earlier."""


class ScoredLines:
    """Says now and then how many members are scored, and how long the others take.

    Args:
        console: where to write.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = self._last = monotonic()
        self._first: int | None = None

    def __call__(self, done: int, total: int, more: str = "") -> None:
        """Take note of members that are scored.

        Args:
            done: how many are.
            total: how many will be.
            more: what is said behind that.
        """
        now = monotonic()
        if self._first is None:  # what came before it was another work
            self._first, self._started = done, now
        if now - self._last >= LINE_SECONDS or done == total:
            self._last = now
            left = (now - self._started) / max(1, done - self._first) * (total - done)
            said = f"{done} of {total} members scored, {show_duration(left)} left{more}"
            self._console.print(Text(said))


class ProgressObserver(Observer):
    """Shows rounds done, time left, losses, what was measured, and every failed client.

    Args:
        rounds: rounds of the run.
        console: where to write; the standard error, so that output stays for programs.
    """

    def __init__(self, rounds: int, console: Console) -> None:
        self._rounds = rounds
        self._console = console
        self._started = monotonic()
        self._first_round: int | None = None
        self._last_line = self._started
        self._measured = ""
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[status]}", markup=False),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("starting", total=rounds, status="")

    def task_done(self, done: int, tasks: int) -> None:
        """Move the bar within a round."""
        if self._bar is not None and self._first_round is not None:
            finished = int(self._bar.tasks[0].completed)
            self._bar.update(self._task, completed=finished + done / (tasks + 1))

    def round_done(
        self, state: ServerState, report: RoundReport, evaluations: Sequence[Evaluation] | None
    ) -> None:
        """Show a finished round."""
        if self._first_round is None:
            self._first_round = state.round_number - 1
        for failure in report.failures:
            task = failure.task
            self._say(
                f"round {report.round_number}: client {task.client} with submodel "
                f"{task.submodel} failed: {failure.reason}"
            )
        if evaluations is not None:
            self._measured = told(evaluations)
        left = self._time_left(state.round_number)
        head = f"round {state.round_number}/{self._rounds}"
        if self._bar is not None:
            status = f"loss {show_loss(report.loss)}  {self._measured}  {left}"
            self._bar.update(
                self._task, completed=state.round_number, description=head, status=status
            )
        elif evaluations is not None or monotonic() - self._last_line > LINE_SECONDS:
            shown = f"  {self._measured}" if evaluations is not None else ""
            self._say(f"{head}  loss {show_loss(report.loss)}{shown}  {left}")

    def round_repeated(self, report: RoundReport, reason: str) -> None:
        """Show a round that did not count."""
        self._say(f"round {report.round_number} is repeated: {reason}")

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def _say(self, line: str) -> None:
        self._last_line = monotonic()
        self._console.print(Text(line), soft_wrap=True)

    def _time_left(self, finished: int) -> str:
        done = finished - (self._first_round or 0)
        seconds = (monotonic() - self._started) / done * (self._rounds - finished)
        return f"{show_duration(seconds)} left" if finished < self._rounds else "done"
