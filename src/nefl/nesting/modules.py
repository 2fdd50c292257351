"""Modules whose class tells the family what their tensors are for."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

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


class Exit(nn.Module):
    """An early classifier. Its tensors may be missing from the full model, which has its own."""
