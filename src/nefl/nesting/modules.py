"""Modules whose class tells the family what their tensors are for."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from nefl.errors import NestingError

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
    """Return the norms with running statistics, by name."""
    return {
        name: child
        for name, child in module.named_modules()
        if isinstance(child, BatchNorm) and child.track_running_stats
    }


@contextmanager
def measuring_norms(module: nn.Module) -> Iterator[set[str]]:
    """Measure norms over all batches that the module is given meanwhile, in evaluation mode.

    Static norms get the mean and variance over all of it. Tracked ones forget what they tracked
    and average the batches' means and variances; those that no batch came by stay as they were.

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


class Frozen(nn.Module):
    """A model over given tensors, such as the base under adapters.

    Frozen tensors come with the builder, the same on every machine: they are never sent, averaged,
    optimised or saved. Derive from it and call `freeze` when all is built: what needs no gradient
    by then, saved buffers too, is frozen from there on.

    Attributes:
        frozen: the names of the frozen tensors, as they stand in its state dict.
    """

    frozen: frozenset[str] = frozenset()

    def __deepcopy__(self, memo: dict[int, object]) -> "Frozen":
        # What is frozen never changes: copies share its memory.
        for name, tensor in self.state_dict(keep_vars=True).items():
            if name in self.frozen:
                memo[id(tensor)] = alias(tensor)
        made = self.__class__.__new__(self.__class__)
        memo[id(self)] = made
        made.__setstate__(copy.deepcopy(self.__dict__, memo))  # type: ignore[no-untyped-call]
        return made

    def freeze(self) -> None:
        """Note which tensors are frozen: those that need no gradient now."""
        tensors = self.state_dict(keep_vars=True)
        self.frozen = frozenset(name for name, t in tensors.items() if not t.requires_grad)

    def train(self, mode: bool = True) -> "Frozen":
        """Set the mode; modules whose tensors are all frozen evaluate, so none of them drifts."""
        super().train(mode)
        for prefix, child in self.named_modules():
            start = f"{prefix}." if prefix else ""
            here = [*child.named_parameters("", recurse=False), *child.named_buffers("", False)]
            if here and all(start + name in self.frozen for name, _ in here):
                child.training = False
        return self


def alias(tensor: Tensor) -> Tensor:
    """Return another tensor over the same memory; a parameter needs no gradient there."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(tensor.detach(), requires_grad=False)
    return tensor.detach()


def frozen_names(module: nn.Module) -> frozenset[str]:
    """Return the names of the frozen tensors of a module."""
    return frozenset(
        f"{prefix}.{name}" if prefix else name
        for prefix, child in module.named_modules()
        if isinstance(child, Frozen)
        for name in child.frozen
    )


def learned_state(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's state dict without what is frozen: all that is sent, averaged and saved."""
    frozen = frozen_names(module)
    return {name: t for name, t in module.state_dict().items() if name not in frozen}


def move_sharing(module: nn.Module, device: torch.device, moved: dict[int, Tensor]) -> nn.Module:
    """Move a module to a device; frozen tensors that others have there already are theirs.

    Args:
        module: the module.
        device: where it goes.
        moved: the frozen tensors that are there, by where they came from; it is added to.
    """
    frozen = frozen_names(module) if device.type != "cpu" else ()
    there: dict[str, Tensor] = {}
    for name, tensor in module.state_dict().items():
        if name in frozen:
            place = tensor.data_ptr()
            if place not in moved:
                moved[place] = tensor.to(device)
            there[name] = moved[place]
    module.load_state_dict(there, strict=False, assign=True)
    return module.to(device)


def load_learned(module: nn.Module, tensors: Mapping[str, Tensor], *, assign: bool = False) -> None:
    """Give a module all of its tensors that are not frozen.

    Raises:
        NestingError: naming one that is missing or unknown.
    """
    for name in learned_state(module).keys() ^ tensors.keys():
        where = "missing" if name not in tensors else "unknown to the model, or frozen"
        raise NestingError(f"{name}: is {where}; give every tensor that is not frozen, once")
    module.load_state_dict(dict(tensors), strict=False, assign=assign)
