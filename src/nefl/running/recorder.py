"""The observer that every run has: it writes the log and the checkpoints."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from time import monotonic
from typing import Any

from nefl.artifacts.runfolder import RunFolder
from nefl.artifacts.summary import averages
from nefl.config import RunConfig
from nefl.measured import MeasuredBy
from nefl.rounds import Observer, RoundReport
from nefl.server.evaluate import mean_of
from nefl.state import Evaluation, ServerState


class Recorder(Observer):
    """Writes the log and the checkpoints of a run into its folder.

    Args:
        folder: where.
        config: the run.
        state: what it goes on from.
        primary: what tells the best checkpoint.
        work: the MACs that a round takes, by who trains each submodel.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        state: ServerState,
        primary: MeasuredBy,
        work: Callable[[int, Mapping[int, Sequence[int]]], float],
    ) -> None:
        self._folder = folder
        self._work = work
        self._config = config
        self._state = state
        self._saved = state.round_number
        self._primary = primary
        self._best = primary.worst_possible
        for average in averages(folder.path, state.round_number, primary.name):
            if primary.is_better(average, self._best):
                self._best = average
        self._best_due = False
        self._last = monotonic()

    def round_done(
        self, state: ServerState, report: RoundReport, evaluations: Sequence[Evaluation] | None
    ) -> None:
        """Log a round, and save a checkpoint when it is time."""
        now = monotonic()
        content = _entry(report)
        content["wall_seconds"], self._last = now - self._last, now
        content["macs"] = round(self._work(report.round_number, report.clients))
        if evaluations is not None:
            names = evaluations[0].values
            content["metrics"] = {n: [e.values[n] for e in evaluations] for n in names}
            content["test_loss"] = [e.loss for e in evaluations]
        self._folder.log("round", **content)
        # A copy off the device: one that fails must not take the round with it.
        self._state = state = state.to("cpu")
        if evaluations is not None:
            average = mean_of(evaluations, self._primary.name)
            if self._primary.is_better(average, self._best):
                self._best, self._best_due = average, True
        # The best comes before the round's own checkpoint: once that is there, the round will not
        # be run again, and a best that was missed then would be missed for good.
        self._save_best()
        due = state.round_number % self._config.server.checkpoint_every == 0
        if due or state.round_number == self._config.rounds:
            self.save()

    def round_repeated(self, report: RoundReport, reason: str) -> None:
        """Log a round that did not count."""
        self._folder.log("repeated", why=reason, **_entry(report))

    def save(self) -> None:
        """Save a checkpoint of the last finished round, and the best, if that is not done."""
        self._save_best()
        if self._state.round_number > self._saved:
            self._folder.save_checkpoint(self._state, self._config.server.keep)
            self._saved = self._state.round_number

    def _save_best(self) -> None:
        if self._best_due:
            self._folder.save_best(self._state, self._best)
            self._best_due = False


def _entry(report: RoundReport) -> dict[str, Any]:
    content = asdict(report)
    content["round"] = content.pop("round_number")
    for key in ("failures", "discarded"):
        content[key] = [
            {"client": f.task.client, "submodel": f.task.submodel, "reason": f.reason}
            for f in getattr(report, key)
        ]
    return content
