"""The memory that a submodel needs to predict: its weights and the activations alive at once."""

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nefl.nesting.signature import Signature


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the storages that operations make, from their making to their end."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._live = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        given = {_key(tensor) for tensor in tree_leaves((args, kwargs)) if _is_tensor(tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in filter(_is_tensor, tree_leaves(result)):
            key = _key(tensor)
            if key not in given and key not in self._known:
                storage = tensor.untyped_storage()
                self._known.add(key)
                self._live += storage.nbytes()
                weakref.finalize(storage, self._end, key, storage.nbytes())
        self.peak = max(self.peak, self._live)
        return result

    def _end(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._live -= size


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 -- meta tensors have no address


def held_bytes(module: nn.Module) -> int:
    """Return the bytes of a module's weights and buffers."""
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))


def inference_memory(module: nn.Module, signature: Signature, batch_size: int = 1) -> int:
    """Return the bytes that a prediction needs: weights, buffers, a batch, live activations.

    Args:
        module: on the meta device.
        signature: what it takes.
        batch_size: examples predicted at once.

    Scratch space of kernels and the runtime itself come on top.
    """
    batch = signature.example(batch_size, "meta")
    was = module.training
    module.eval()
    try:
        with torch.no_grad(), _LiveBytes() as live:
            module(batch)
    finally:
        module.train(was)
    peak: int = live.peak
    return held_bytes(module) + batch.numel() * batch.element_size() + peak
