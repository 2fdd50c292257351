"""Curves for TensorBoard, on request."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nefl.errors import ConfigError
from nefl.rounds import Observer, RoundReport
from nefl.server.evaluate import mean_of
from nefl.state import Evaluation, ServerState


class TensorBoardObserver(Observer):
    """Writes losses, what was measured, and traffic of each round.

    Raises:
        ConfigError: if TensorBoard is not installed.
    """

    def __init__(self, folder: Callable[[], Path]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "TensorBoard is not installed; install it with: pip install 'nefl[tensorboard]'"
            ) from None
        # Made when the first round is done: before, the run may have no folder yet.
        self._make: Callable[[], Any] = lambda: SummaryWriter(str(folder()))
        self._writer: Any = None

    def round_done(
        self, state: ServerState, report: RoundReport, evaluations: Sequence[Evaluation] | None
    ) -> None:
        """Write a round's curves."""
        if self._writer is None:
            self._writer = self._make()
        values = {
            "train/loss": report.loss,
            "round/seconds": report.seconds,
            "round/failures": float(len(report.failures)),
            "round/bytes_up": float(report.bytes_up),
        }
        for found in evaluations or ():
            for name, value in found.values.items():
                values[f"{name}/submodel {found.submodel}"] = value
        if evaluations:
            for name in evaluations[0].values:
                values[f"{name}/average"] = mean_of(evaluations, name)
        for name, value in values.items():
            self._writer.add_scalar(name, value, state.round_number)
        self._writer.flush()
