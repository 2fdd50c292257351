"""Weights in memory that several processes map: one server state, and a slot for each update."""

import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nefl.nesting.sets import memory_layout, travel_layout
from nefl.nesting.spec import Family, TensorInfo
from nefl.state import ServerState

_ALIGNMENT = 64  # bytes; a cache line, and enough for any vector instruction


def make_shared_file() -> int:
    """Return the descriptor of a file without a name: it is gone with its last process."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("nefl")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SharedWeights:
    """The same view of the same memory, in the server and in every worker.

    Args:
        family: whose weights they are; it alone decides where each tensor lies.
        slots: how many updates have a place.
        descriptor: the shared file. The first to map it gives it its size.
        receives: the sets of the server's memory that clients receive.
        sends: the sets that come with an update.
    """

    def __init__(
        self,
        family: Family,
        slots: int,
        descriptor: int,
        *,
        receives: Sequence[str] = (),
        sends: Sequence[str] = (),
    ) -> None:
        self._family = family
        place = _Places()
        self._shared = {name: place.take(i) for name, i in family.global_layout.items()}
        self._own = [
            {n: place.take(family.layout(k)[n]) for n in sorted(family.own_names(k))}
            for k in range(1, len(family) + 1)
        ]
        memory = {n: place.take(i) for n, i in memory_layout(family, receives).items()}
        self._slots_start = place.end
        self._slot_places: list[Mapping[str, tuple[int, TensorInfo]]] = []
        self._slot_bytes = 0
        for k in range(1, len(family) + 1):
            in_slot = _Places()
            layout = travel_layout(family, k, sends)
            self._slot_places.append({n: in_slot.take(i) for n, i in layout.items()})
            self._slot_bytes = max(self._slot_bytes, in_slot.end)
        size = self._slots_start + slots * self._slot_bytes
        if os.fstat(descriptor).st_size < size:
            os.ftruncate(descriptor, size)
        self._memory = mmap.mmap(descriptor, size)
        self._state = ServerState(
            0,
            {name: self._tensor(*where) for name, where in self._shared.items()},
            tuple({n: self._tensor(*where) for n, where in own.items()} for own in self._own),
            {name: self._tensor(*where) for name, where in memory.items()},
        )

    @property
    def state(self) -> ServerState:
        """The weights as they were last written; its round number means nothing."""
        return self._state

    def write(self, state: ServerState) -> None:
        """Copy a server state in, for all to see."""
        for name, tensor in self._state.shared.items():
            tensor.copy_(state.shared[name])
        for mine, theirs in zip(self._state.per_submodel, state.per_submodel, strict=True):
            for name, tensor in mine.items():
                tensor.copy_(theirs[name])
        for name, tensor in self._state.memory.items():
            if name in state.memory:  # before the first round there is none, and none is asked for
                tensor.copy_(state.memory[name])

    def slot(self, number: int, submodel: int) -> dict[str, Tensor]:
        """Return the tensors of an update of a submodel in one of the slots, sets among them."""
        start = self._slots_start + number * self._slot_bytes
        places = self._slot_places[submodel - 1]
        return {name: self._tensor(start + offset, i) for name, (offset, i) in places.items()}

    def _tensor(self, offset: int, info: TensorInfo) -> Tensor:
        if not info.numel:
            return torch.empty(info.shape, dtype=info.dtype)
        flat = torch.frombuffer(self._memory, dtype=info.dtype, count=info.numel, offset=offset)
        return flat.view(info.shape)


class _Places:
    """Hands out aligned places, one after another."""

    def __init__(self) -> None:
        self.end = 0

    def take(self, info: TensorInfo) -> tuple[int, TensorInfo]:
        offset = self.end
        self.end += -(-info.nbytes // _ALIGNMENT) * _ALIGNMENT
        return offset, info
