"""Settings of a process: what makes small networks train faster, or a server stay small."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from nefl.config import RunConfig
from nefl.engines.devices import pick_devices
from nefl.moving import CUDA

# Option numbers of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_KEEP_BYTES = 1 << 30
_TOP_PAD_BYTES = 64 << 20
_M_ARENA_MAX = -8
_RETURNED_BYTES = 1 << 20

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""What cuBLAS reads when it starts; with it, and not without, its products repeat bit for bit."""


def tune_process(threads: int) -> None:
    """Keep freed memory for the next batch, and use as many torch threads as told.

    By default glibc hands large buffers back to the system when a batch is done and gets them
    anew, page by page, for the next one. One thread a process is fastest where there are as many
    processes as cores, and results then do not depend on how a sum is split among threads.
    """
    torch.set_num_threads(threads)
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)
            mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
            mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)


def tune_gpu(*, deterministic: bool, tf32: bool) -> None:
    """Let a GPU choose kernels that repeat bit for bit, or else the fastest.

    Args:
        deterministic: whether they repeat. Of operations that have no such kernel torch warns.
        tf32: whether products of float32 may be made of numbers with 10 bits.
    """
    cudnn = torch.backends.cudnn
    cudnn.deterministic, cudnn.benchmark = deterministic, not deterministic
    cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    if deterministic:
        os.environ.setdefault(*_WORKSPACE)
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    # Nothing here reads memory that was never written: filling it first would only take time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def tune_for(config: RunConfig) -> None:
    """Tune the process for a run's training, for good."""
    tune_process(config.engine.threads)
    if pick_devices(config.engine.devices)[0].type == CUDA:
        tune_gpu(deterministic=config.engine.deterministic, tf32=config.local.precision == "tf32")


@contextmanager
def tuned_process(threads: int) -> Iterator[None]:
    """Tune the process for a while; what torch lets one set back is set back."""
    before = torch.get_num_threads()
    tune_process(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def tuned_for(config: RunConfig) -> Iterator[None]:
    """Tune the process for a run's training, for a while."""
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, products.allow_tf32
    repeats = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    with tuned_process(config.engine.threads):
        try:
            tune_for(config)
            yield
        finally:
            cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, products.allow_tf32 = before
            if repeats != torch.are_deterministic_algorithms_enabled():
                # Not called for nothing: it loads torch's compiler, which takes a second or more.
                torch.use_deterministic_algorithms(repeats, warn_only=warns)


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
