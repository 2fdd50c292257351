"""Modules whose class tells the family what their tensors are for."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from nefl.nesting.frozen import frozen_names

BatchNorm = _BatchNorm
"""Every batch normalisation of torch, whatever its number of dimensions."""


class StepSize(nn.Module):
    """The residual sum `Y + s * F(Y)` with its step size s, a scalar.

    A learned step is a parameter named `value`. A constant one is a plain number: it is neither
    stored nor sent, and a step of exactly 1 costs nothing.
    """

    value: nn.Parameter | None

    def __init__(self, initial: float = 1.0, *, learned: bool = True) -> None:
        super().__init__()
        self.initial = float(initial)
        self.value = nn.Parameter(torch.tensor(self.initial)) if learned else None

    def forward(self, stream: Tensor, branch: Tensor) -> Tensor:
        """Return `stream + s * branch`."""
        if self.value is not None:
            return torch.addcmul(stream, branch, self.value)
        return torch.add(stream, branch, alpha=self.initial)

    def extra_repr(self) -> str:
        """Show the initial value and whether it is learned."""
        return f"initial={self.initial}, learned={self.value is not None}"


class StaticBatchNorm(BatchNorm):
    """A batch norm without running statistics (HeteroFL's).

    It normalises every batch by its own mean and variance. For evaluation they are measured over
    many batches first: see `measuring_norms`. What was measured is not part of the weights, but it
    moves with them to another device or dtype.
    """

    measured_mean: Tensor | None
    measured_variance: Tensor | None

    def __init__(self, channels: int) -> None:
        super().__init__(channels, track_running_stats=False)
        self.register_buffer("measured_mean", None, persistent=False)
        self.register_buffer("measured_variance", None, persistent=False)
        self.sums: list[Tensor] | None = None  # examples × pixels, values, squares

    @property
    def measured(self) -> tuple[Tensor, Tensor] | None:
        """Mean and variance, once they are measured."""
        if self.measured_mean is None or self.measured_variance is None:
            return None
        return self.measured_mean, self.measured_variance

    @measured.setter
    def measured(self, statistics: tuple[Tensor, Tensor] | None) -> None:
        self.measured_mean, self.measured_variance = statistics or (None, None)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise; take note of the batch while measuring."""
        if self.sums is not None:
            wide = x.detach().double()
            count = torch.tensor(float(x.numel() // x.shape[1]), device=x.device)
            others = [axis for axis in range(x.ndim) if axis != 1]
            batch = count, wide.sum(others), wide.square().sum(others)
            for total, more in zip(self.sums, batch, strict=True):
                total += more
        elif self.measured is not None and not self.training:
            mean, variance = self.measured
            return functional.batch_norm(x, mean, variance, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


class StaticBatchNorm1d(StaticBatchNorm, nn.BatchNorm1d):
    """One for series, [N, C, L]."""


class StaticBatchNorm2d(StaticBatchNorm, nn.BatchNorm2d):
    """One for images, [N, C, H, W]."""


def has_static_norms(module: nn.Module) -> bool:
    """Whether a module has norms that must be measured before it is evaluated."""
    return any(isinstance(child, StaticBatchNorm) for child in module.modules())


def tracked_norms(module: nn.Module) -> dict[str, BatchNorm]:
    """Return the norms with running statistics, by name; those whose statistics are frozen not."""
    frozen = frozen_names(module)
    return {
        name: child
        for name, child in module.named_modules()
        if isinstance(child, BatchNorm)
        and child.track_running_stats
        and (f"{name}.running_mean" if name else "running_mean") not in frozen
    }


@contextmanager
def measuring_norms(module: nn.Module) -> Iterator[set[str]]:
    """Measure norms over all batches that the module is given meanwhile, in evaluation mode.

    Static norms get the mean and variance over all of it. Tracked ones forget what they tracked
    and average the batches' means and variances; those that no batch came by, and frozen ones,
    stay as they were.

    Yields:
        A set that holds, afterwards, the names of the tracked norms that were measured.
    """
    static = [child for child in module.modules() if isinstance(child, StaticBatchNorm)]
    tracked = tracked_norms(module)
    before = {name: (norm.momentum, _copies(norm)) for name, norm in tracked.items()}
    measured: set[str] = set()
    for norm in tracked.values():
        norm.reset_running_stats()
        norm.momentum = None  # a plain average instead of one that fades
        norm.train()
    with _summing(static):
        try:
            yield measured
        finally:
            for name, norm in tracked.items():
                norm.momentum, statistics = before[name]
                norm.eval()
                if norm.num_batches_tracked:
                    measured.add(name)
                else:
                    norm.load_state_dict(statistics)


def _copies(norm: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in norm.state_dict().items()}


@contextmanager
def _summing(norms: list[StaticBatchNorm]) -> Iterator[None]:
    sums = []
    for norm in norms:
        zeros = torch.zeros(norm.num_features, dtype=torch.float64, device=norm.weight.device)
        norm.sums = [zeros.sum(), zeros.clone(), zeros.clone()]
        sums.append(norm.sums)
    try:
        yield
    finally:
        for norm in norms:
            norm.sums = None
    for norm, (count, values, squares) in zip(norms, sums, strict=True):
        mean = values / count
        variance = (squares / count - mean.square()).clamp(min=0)
        norm.measured = mean.to(norm.weight.dtype), variance.to(norm.weight.dtype)


class Exit(nn.Module):
    """An early classifier. Its tensors may be missing from the full model, which has its own."""
