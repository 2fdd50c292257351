"""The optimiser of local training."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from nefl.config import LocalConfig


def make_optimiser(
    model: nn.Module, local: LocalConfig, further: Iterable[nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """Return a fresh optimiser; clients keep no state of it between rounds.

    Args:
        model: what is trained.
        local: the optimiser's settings.
        further: parameters that are trained with it.
    """
    # A frozen base has thousands that need no gradient; they would be looked at in every step.
    return optimiser_of([p for p in (*model.parameters(), *further) if p.requires_grad], local)


def optimiser_of(tensors: Iterable[Tensor], local: LocalConfig) -> torch.optim.Optimizer:
    """Return a fresh optimiser of tensors."""
    parameters = list(tensors)
    if local.optimizer == "sgd":
        return torch.optim.SGD(
            parameters,
            local.learning_rate,
            momentum=local.momentum,
            weight_decay=local.weight_decay,
            foreach=True,
        )
    kind = torch.optim.Adam if local.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, local.learning_rate, weight_decay=local.weight_decay, foreach=True)
