"""Frozen tensors: given by the builder, the same on every machine, under what is learned."""

import copy
import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nefl.errors import NestingError


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


Moved = dict[tuple[object, ...], tuple[Tensor, Tensor]]
"""Tensors that were moved to a device, by where and how they lay: as they were, and there."""


def move_sharing(module: nn.Module, device: torch.device, moved: Moved) -> nn.Module:
    """Move a module to a device; frozen tensors that others have there already are theirs.

    Args:
        module: the module.
        device: where it goes.
        moved: the frozen tensors that are there; it is added to.
    """
    frozen = frozen_names(module) if device.type != "cpu" else ()
    there: dict[str, Tensor] = {}
    for name, tensor in module.state_dict().items():
        if name in frozen:
            place = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
            if place not in moved:  # kept as it was too: no other tensor can come to lie there
                moved[place] = tensor, tensor.to(device)
            there[name] = moved[place][1]
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


def tensors_checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return a checksum over every name, dtype, shape and value."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        digest.update(plain.reshape(-1).view(torch.int8).numpy().data if plain.numel() else b"")
    return digest.hexdigest()
