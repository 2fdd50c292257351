"""Whether an exported file does what the trained model does, on real examples."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nefl.errors import RunError
from nefl.measured import MeasuredBy
from nefl.tasks.task import Task

TOLERANCE = 1e-4
"""Largest difference of a float file's outputs, relative to the largest if that is above 1."""

ROUNDINGS = 8
"""The same for models in half precision, in units of their rounding."""

MAX_LOSS = 0.05
"""What an int8 file may lose of its most important metric before it counts as broken: in points,
where that is read in percent, otherwise as a share of the trained model's value."""


@dataclass(frozen=True)
class Comparison:
    """A file beside the model it was made from.

    Attributes:
        examples: how many test examples both were given.
        difference: the largest absolute difference of two outputs.
        agreement: the share of answers in which both say the same class or token; None where
            there are none.
        metric: what was measured, the most important.
        values: what was measured of the file, by the metrics' names.
        trained: what was measured of the trained model, on the same examples.
        tolerance: what the difference may be.
    """

    examples: int
    difference: float
    agreement: float | None
    metric: MeasuredBy
    values: Mapping[str, float]
    trained: Mapping[str, float]
    tolerance: float

    @property
    def value(self) -> float:
        """The most important metric of the file."""
        return self.values[self.metric.name]

    @property
    def trained_value(self) -> float:
        """The most important metric of the trained model."""
        return self.trained[self.metric.name]

    @property
    def loss(self) -> float:
        """How much worse the file is, in points or as a share of the trained model's value."""
        apart = self.trained_value - self.value
        worse = apart if self.metric.better == "up" else -apart
        if self.metric.percent or not worse:
            return worse
        return worse / abs(self.trained_value) if self.trained_value else math.inf


def tolerance_of(module: nn.Module) -> float:
    """Return what the outputs of a module's file may differ by, as a share of the largest."""
    kinds = {p.dtype for p in module.parameters() if p.is_floating_point()}
    return max([TOLERANCE, *(ROUNDINGS * torch.finfo(k).eps for k in kinds if k.itemsize == 2)])


def compare(
    got: Tensor, wanted: Tensor, target: Tensor, task: Task, tolerance: float = TOLERANCE
) -> Comparison:
    """Compare the outputs of a file with those of the trained model, as a task measures them."""
    if got.shape != wanted.shape:
        raise RunError(f"the file gives outputs {tuple(got.shape)}, expected {tuple(wanted.shape)}")
    agreement = None
    if task.class_names or task.signature.each_token:
        agreement = float((got.argmax(-1) == wanted.argmax(-1)).float().mean())
    primary = task.primary
    return Comparison(
        examples=len(target),
        difference=float((got - wanted).abs().max()),
        agreement=agreement,
        metric=MeasuredBy(primary.name, primary.better, percent=primary.percent),
        values=measured(task, got, target),
        trained=measured(task, wanted, target),
        tolerance=tolerance * max(1.0, float(wanted.abs().max())),
    )


def measured(task: Task, outputs: Tensor, target: Tensor) -> dict[str, float]:
    """Return all metrics of a task, by name."""
    return {m.name: m.value(task.measure(m, outputs, target)) for m in task.measured}


def check(found: Comparison, *, quantized: bool, max_loss: float = MAX_LOSS) -> None:
    """Refuse a file that does not do what the trained model does.

    Raises:
        RunError: naming by how much it is off.
    """
    if quantized:
        if not found.loss <= max_loss:  # also if it is not a number
            raise RunError(
                f"int8 loses {found.loss:.4f} of {found.metric.name} ({found.trained_value:.4f} to "
                f"{found.value:.4f} on {found.examples} examples), at most {max_loss} is allowed; "
                "export it without --quantize, or allow more with --max-loss"
            )
    elif not found.difference <= found.tolerance:  # also if it is not a number
        raise RunError(
            f"the file's outputs differ by {found.difference:.3g} from the trained model's on "
            f"{found.examples} examples, at most {found.tolerance:.3g} is allowed: no file was "
            "written; try another format, and report this"
        )
    if not torch.isfinite(torch.tensor(found.difference)):
        raise RunError("the outputs are not finite: the training diverged; export another run")
