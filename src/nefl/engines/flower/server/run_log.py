"""What a run says in Flower's log, where `flwr run --stream` shows it."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nefl.rounds import Observer, RoundReport
from nefl.server.evaluate import told
from nefl.state import Evaluation, ServerState

_log = logging.getLogger("flwr")


class LogObserver(Observer):
    """Says in a line what became of each round.

    Attributes:
        rounds: rounds of the whole run. A run that goes on has those of its own folder, whatever
            the app says now, so they are known when it is set up.
    """

    def __init__(self) -> None:
        self.rounds = 0

    def round_done(
        self, _state: ServerState, report: RoundReport, evaluations: Sequence[Evaluation] | None
    ) -> None:
        """Say how a round went."""
        scored = "" if evaluations is None else f", {told(evaluations)}"
        _log.info(
            "round %d/%d: %d of %d updates%s, loss %.4f%s, %.1f s",
            report.round_number,
            self.rounds,
            sum(report.trained.values()),
            report.tasks,
            f" ({len(report.discarded)} discarded)" if report.discarded else "",
            report.loss,
            scored,
            report.seconds,
        )
        self._say_failures(report)

    def round_repeated(self, report: RoundReport, reason: str) -> None:
        """Say that a round does not count."""
        _log.warning("round %d is repeated: %s", report.round_number, reason)
        self._say_failures(report)

    def _say_failures(self, report: RoundReport) -> None:
        for failure in report.failures:
            _log.warning("round %d, %s", report.round_number, failure.reason)
        for note in report.notes:
            _log.warning("round %d, %s", report.round_number, note)


def say_result(summary: Mapping[str, Any], folder: Path) -> None:
    """Say what came out, and where it lies."""
    name = summary["metric"]
    values = ", ".join(f"{value:.4f}" for value in summary[name] or [])
    _log.info("done: %s of each submodel %s", name, values or "was not measured")
    _log.info("run folder %s, state_sha256 %s", folder.absolute(), summary["state_sha256"])
