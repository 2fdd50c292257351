"""The optimiser of local training."""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from nefl.config import LocalConfig


class Descent:
    """Stochastic gradient descent with momentum and weight decay, as `torch.optim.SGD` makes it.

    The same operations in the same order, so the same bits. torch's own loads the compiler when it
    is made: as long as all of torch takes, in every process that trains.

    Attributes:
        param_groups: one group, with `params` and the rate `lr` of the next step.
    """

    def __init__(
        self, parameters: list[Tensor], rate: float, momentum: float, weight_decay: float
    ) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": parameters, "lr": rate}]
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._moved: dict[Tensor, Tensor] = {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; with `set_to_none` their memory too."""
        for parameter in self.param_groups[0]["params"]:
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad.detach_().zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Go one step down the gradients; parameters without one stay."""
        group = self.param_groups[0]
        trained = [p for p in group["params"] if p.grad is not None]
        gradients: Any = [p.grad for p in trained]
        if not trained:
            return
        if self._weight_decay:
            gradients = torch._foreach_add(gradients, trained, alpha=self._weight_decay)
        if self._momentum:
            gradients = self._with_momentum(trained, gradients)
        torch._foreach_add_(trained, gradients, alpha=-group["lr"])

    def _with_momentum(self, trained: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        """Return the gradients with what is left of earlier ones, which starts with the first."""
        known = [
            (self._moved[p], g) for p, g in zip(trained, gradients, strict=True) if p in self._moved
        ]
        if known:
            before, now = map(list, zip(*known, strict=True))
            torch._foreach_mul_(before, self._momentum)
            torch._foreach_add_(before, now)
        for parameter, gradient in zip(trained, gradients, strict=True):
            if parameter not in self._moved:
                self._moved[parameter] = gradient.clone()
        return [self._moved[p] for p in trained]


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
        descent = Descent(parameters, local.learning_rate, local.momentum, local.weight_decay)
        return cast("torch.optim.Optimizer", descent)  # it has all that is used of one
    kind = torch.optim.Adam if local.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, local.learning_rate, weight_decay=local.weight_decay, foreach=True)
