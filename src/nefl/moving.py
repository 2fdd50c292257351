"""Copies between main memory and a device that nobody waits for before they are needed."""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

CUDA = "cuda"
"""Devices, as torch calls them, that compute while the program goes on."""


def ready_to_go(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor from which a device can copy by itself: in pinned memory, if it is a GPU."""
    if device.type != CUDA or tensor.device.type != "cpu":
        return tensor
    # torch keeps the memory until the copy is done, and then for the next one.
    return tensor.pin_memory()


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; what is computed with it there waits for it, we do not."""
    return ready_to_go(tensor, device).to(device, non_blocking=True)


def in_main_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors in main memory; those of a GPU come all at once, waited for once."""
    there = {t.device for t in tensors.values() if t.device.type == CUDA}
    here = {
        name: torch.empty_like(t, device="cpu", pin_memory=True).copy_(t, non_blocking=True)
        if t.device in there
        else t
        for name, t in tensors.items()
    }
    for device in there:
        torch.cuda.current_stream(device).synchronize()
    return here


def fetched(
    pieces: Iterable[Mapping[str, Tensor]], device: torch.device
) -> Iterator[dict[str, Tensor]]:
    """Yield pieces of examples on a device, all of which lie there or all in main memory.

    Of those that a GPU has to copy, the next is on its way while one is used.
    """
    waiting: _Coming | None = None
    aside: torch.cuda.Stream | None = None
    for piece in pieces:
        if device.type != CUDA or next(iter(piece.values())).device.type == CUDA:
            yield {name: values.to(device) for name, values in piece.items()}
            continue
        aside = aside or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        coming = _Coming(piece, device, aside)
        if waiting is not None:
            yield waiting.arrived()
        waiting = coming
    if waiting is not None:
        yield waiting.arrived()


class _Coming:
    """A piece of examples on its way to a GPU, beside what is computed there."""

    def __init__(
        self, piece: Mapping[str, Tensor], device: torch.device, aside: torch.cuda.Stream
    ) -> None:
        self._device = device
        with torch.cuda.stream(aside):
            self._piece = {name: sent(values, device) for name, values in piece.items()}
            self._arrival = aside.record_event()

    def arrived(self) -> dict[str, Tensor]:
        """Return the piece; what is computed on the GPU from now on may use it."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._arrival)
        for values in self._piece.values():
            values.record_stream(stream)  # its memory is not given away while it is used there
        return self._piece
