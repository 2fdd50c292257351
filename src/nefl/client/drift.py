"""Objectives against client drift: FedProx, SCAFFOLD, FedDyn.

Clients that see other examples pull the weights apart. Each of these changes the gradient of every
local step so that they stay together, whatever the loss is: another objective gives that. The
training loss that is reported is the other objective's too, and can be compared between methods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nefl.client.objective import Local, Objective
from nefl.config import LocalConfig
from nefl.config.checks import require
from nefl.errors import ConfigError
from nefl.nesting.spec import Family


@dataclass(frozen=True)
class _Corrected(Objective):
    """An objective that takes its loss from another one and corrects the gradients.

    Attributes:
        of: where the loss comes from.
    """

    of: Objective = field(default_factory=Objective, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse two methods that would both correct the gradients."""
        if isinstance(self.of, _Corrected):
            raise ConfigError(
                f"{type(self).__name__} of {type(self.of).__name__}: one correction of the "
                "gradients at a time; take another family"
            )

    @property
    def needs_exits(self) -> bool:
        """As the other one."""
        return self.of.needs_exits

    @property
    def follows_rounds(self) -> bool:
        """As the other one."""
        return self.of.follows_rounds

    @property
    def needs_members(self) -> bool:
        """As the other one."""
        return self.of.needs_members

    @property
    def needs_own(self) -> bool:
        """As the other one."""
        return self.of.needs_own

    def check(self, local: LocalConfig) -> None:
        """As the other one."""
        self.of.check(local)

    def members(self, family: Family, submodel: int) -> tuple[int, ...]:
        """As the other one."""
        return self.of.members(family, submodel)

    def work(self, members: Sequence[int], submodel: int, round_number: int) -> Mapping[int, float]:
        """As the other one."""
        return self.of.work(members, submodel, round_number)

    def at_once(self, members: Sequence[int], submodel: int) -> Sequence[Sequence[int]]:
        """As the other one."""
        return self.of.at_once(members, submodel)

    def loss(self, local: Local, inputs: Tensor, target: Tensor) -> Tensor:
        """Return the other one's loss."""
        return self.of.loss(local, inputs, target)


@dataclass(frozen=True)
class Proximal(_Corrected):
    """FedProx: clients minimise their loss and μ/2 ‖w - w_t‖², w_t being the server's weights.

    Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020), Algorithm 2. Its
    inexact solution of the local problem is local training as it is configured.

    Attributes:
        mu: how strongly weights are held to where they began.
    """

    mu: float = 0.01

    def __post_init__(self) -> None:
        """Refuse a force that pushes away."""
        super().__post_init__()
        require(0 <= self.mu < 1e6, f"mu is {self.mu}: give 0 or more, below 1e6")

    def before_step(self, local: Local) -> None:
        """Add the gradient of the proximal term, μ (w - w_t)."""
        _add_pull(local, self.mu)


@dataclass(frozen=True)
class ControlVariates(_Corrected):
    """SCAFFOLD: each step is corrected by how the client's gradients differ from all clients'.

    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (ICML
    2020), Algorithm 1 with option II for the new control variate. Where the rate changes between
    steps, their sum stands for K η_l.
    """

    keeps = ("control",)
    receives = ("control",)
    sends = ("control",)

    def check(self, local: LocalConfig) -> None:
        """Refuse optimisers whose steps are not a rate times a gradient.

        Raises:
            ConfigError: naming the setting.
        """
        super().check(local)
        if local.optimizer != "sgd" or local.momentum:
            raise ConfigError(
                f"local.optimizer is {local.optimizer!r} with momentum {local.momentum}: SCAFFOLD "
                "takes the mean gradient from how far the weights moved, which needs 'sgd' with "
                "local.momentum 0"
            )

    def before_step(self, local: Local) -> None:
        """Turn the gradient g into g - c_i + c."""
        own, common = local.memory["control"], local.received["control"]
        for name, gradient in _gradients(local).items():
            gradient.sub_(own[name]).add_(common[name])

    def after(self, local: Local) -> None:
        """Renew c_i to c_i - c + (x - y_i) / (K η_l), and send by how much it changed."""
        own, common = local.memory["control"], local.received["control"]
        renewed, changed = dict(own), {}
        for name, parameter in local.parameters.items():
            if local.rate_sum:
                mean = (local.began[name] - parameter) / local.rate_sum
                changed[name] = mean - common[name]
            else:  # nothing moved: nothing was learned of the gradient
                changed[name] = torch.zeros_like(parameter)
            renewed[name] = own[name] + changed[name]
        local.memory["control"], local.sent["control"] = renewed, changed


@dataclass(frozen=True)
class Dynamic(_Corrected):
    """FedDyn: a regulariser that moves each client's optimum to where all clients' is.

    Acar et al., "Federated Learning Based on Dynamic Regularization" (ICLR 2021), Algorithm 1:
    clients minimise L_k(w) - <g_k, w> + α/2 ‖w - w_t‖², and g_k, the gradient of L_k where the
    client ended, becomes g_k - α (w_k - w_t).

    Attributes:
        alpha: the regulariser's weight; the server step has the same.
    """

    keeps = ("gradient",)

    alpha: float = 0.1

    def __post_init__(self) -> None:
        """Refuse a regulariser that pushes away, or none, by which the server would divide."""
        super().__post_init__()
        require(0 < self.alpha < 1e6, f"alpha is {self.alpha}: give above 0, below 1e6")

    def before_step(self, local: Local) -> None:
        """Add the regulariser's gradient, α (w - w_t) - g_k."""
        own = local.memory["gradient"]
        for name, gradient in _gradients(local).items():
            gradient.sub_(own[name])
        _add_pull(local, self.alpha)

    def after(self, local: Local) -> None:
        """Renew g_k."""
        own = dict(local.memory["gradient"])
        for name, parameter in local.parameters.items():
            own[name] = own[name] - self.alpha * (parameter - local.began[name])
        local.memory["gradient"] = own


def _add_pull(local: Local, strength: float) -> None:
    """Add to each gradient the pull towards the weights that training began with."""
    for name, gradient in _gradients(local).items():
        gradient.add_(local.parameters[name] - local.began[name], alpha=strength)


def _gradients(local: Local) -> dict[str, Tensor]:
    """Return the gradients by name; a parameter that had no part in the step has none."""
    found = {name: parameter.grad for name, parameter in local.parameters.items()}
    return {name: gradient for name, gradient in found.items() if gradient is not None}
