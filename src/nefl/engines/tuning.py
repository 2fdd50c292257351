"""Settings of a process that make small networks train faster, made without being asked."""

import ctypes
import sys

import torch

# Option numbers of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_KEEP_BYTES = 1 << 30
_TOP_PAD_BYTES = 64 << 20


def tune_process(threads: int) -> None:
    """Keep freed memory for the next batch, and use as many torch threads as told.

    By default glibc hands large buffers back to the system when a batch is done and gets them
    anew, page by page, for the next one. One thread a process is fastest where there are as many
    processes as cores, and results then do not depend on how a sum is split among threads.
    """
    torch.set_num_threads(threads)
    torch.backends.cudnn.deterministic = True  # the same bits every time, also on a GPU
    torch.backends.cudnn.benchmark = False
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)
            mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
            mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)
