"""A smaller member inside a client's own submodel: how it runs on the weights of that one."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nefl.nesting.corners import corner
from nefl.nesting.inside import member_name


class Member:
    """A member that runs with leading corners of another model's tensors, and some of its own.

    Corners are views: gradients reach the other model's parameters, and statistics that are shared
    are the other's too. Nothing is copied, but for those statistics where corners are given.

    Args:
        number: the member's number, from 1.
        module: its module, on the other model's device, with its own tensors in place; its shared
            ones are never looked at.
        own: the names of its own tensors.
    """

    def __init__(self, number: int, module: nn.Module, own: frozenset[str]) -> None:
        self._number = number
        self._module = module
        self._own = own
        places, tensors = _places(module), module.state_dict()
        self._corners = {
            name: corner(tensor.shape)
            for name, tensor in tensors.items()
            if name in places and name not in own
        }
        self._statistics = {name for name, _ in module.named_buffers(remove_duplicate=False)}

    def run(
        self,
        model: nn.Module,
        inputs: Tensor,
        *,
        corners_given: bool = False,
        instead: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Return the member's outputs with the corners of a model, in that model's mode.

        With `corners_given` no gradient reaches the corners, and shared statistics stay unchanged.
        What stands in `instead` is taken in place of the model's tensors.
        """
        self._module.train(model.training)
        theirs = model.state_dict(keep_vars=not corners_given) | dict(instead or {})
        shared = {name: theirs[name][where] for name, where in self._corners.items()}
        if corners_given:
            shared |= {name: shared[name].clone() for name in shared.keys() & self._statistics}
        # Tied tensors are given at each of their places, as views of the same one.
        outputs: Tensor = functional_call(self._module, shared, (inputs,), tie_weights=False)
        return outputs

    def left_alone(self, model: nn.Module, share: float) -> dict[str, Tensor]:
        """Return a model's parameters, the same numbers, for a loss that leaves the corners alone.

        Of such a loss's gradient this share is kept from the member's corners. Parameters in which
        it has no corner, or that are not trained, are not among them.
        """
        every = model.named_parameters(remove_duplicate=False)
        named = {name: parameter for name, parameter in every if parameter.requires_grad}
        left: Callable[..., Tensor] = _Left.apply
        return {
            name: left(named[name], self._corners[name], share)
            for name in self._corners.keys() & named.keys()
        }

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return its own parameters, by the names they travel by."""
        named = self._module.named_parameters()
        return {member_name(self._number, n): p for n, p in named if n in self._own}

    def own_tensors(self) -> dict[str, Tensor]:
        """Return its own tensors, statistics among them, by the names they travel by."""
        tensors = self._module.state_dict().items()
        return {member_name(self._number, n): t for n, t in tensors if n in self._own}


class _Left(torch.autograd.Function):
    """A tensor as it is, from whose corner a share of the gradient is kept."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, where: tuple[slice, ...], share: float) -> Tensor:
        ctx.where, ctx.share = where, share
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        [gradient] = gradients
        left = gradient.clone()  # others may look at the one that came
        left[ctx.where] *= 1 - ctx.share
        return left, None, None


def _places(module: nn.Module) -> set[str]:
    """Return a name for each place of a tensor: a module that stands twice has its places once.

    Given twice, torch would put the second value back as if it had been there before.
    """
    found: set[str] = set()
    for prefix, child in module.named_modules():
        for named in (child.named_parameters, child.named_buffers):
            found |= {n for n, _ in named(prefix, recurse=False, remove_duplicate=False)}
    return found


Members = Mapping[int, Member]
"""Members by their numbers."""
