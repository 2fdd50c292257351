"""Settings of a process: what makes small networks train faster, or a server stay small."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Option numbers of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_KEEP_BYTES = 1 << 30
_TOP_PAD_BYTES = 64 << 20
_M_ARENA_MAX = -8
_RETURNED_BYTES = 1 << 20


def tune_process(threads: int) -> None:
    """Keep freed memory for the next batch, and use as many torch threads as told.

    By default glibc hands large buffers back to the system when a batch is done and gets them
    anew, page by page, for the next one. One thread a process is fastest where there are as many
    processes as cores, and results then do not depend on how a sum is split among threads.
    """
    torch.set_num_threads(threads)
    torch.backends.cudnn.deterministic = True  # convolutions on a GPU repeat bit for bit
    torch.backends.cudnn.benchmark = False
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)
            mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
            mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)


@contextmanager
def tuned_process(threads: int) -> Iterator[None]:
    """Tune the process for a while; what torch lets one set back is set back."""
    cudnn = torch.backends.cudnn
    before = torch.get_num_threads(), cudnn.deterministic, cudnn.benchmark
    tune_process(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        cudnn.deterministic, cudnn.benchmark = before[1:]


def give_memory_back() -> None:
    """Let a process that runs for long hand what it frees back to the system.

    By default glibc keeps freed pictures for the next one, and a store of its own for each thread:
    after a flood all that was ever needed at once in each of them would stay.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, 2)
            mallopt(_M_MMAP_THRESHOLD, _RETURNED_BYTES)
            mallopt(_M_TRIM_THRESHOLD, _RETURNED_BYTES)


def trim_memory() -> None:
    """Hand freed memory back to the system now, in a process that waits for more to do."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
