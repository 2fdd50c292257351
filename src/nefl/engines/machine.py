"""What this machine has: memory that is free, and how long training steps take."""

import time
from pathlib import Path

import torch

from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family

HEADROOM = 1.25
"""Kernels need scratch space beside what is counted: of what is free, training may take the rest.
"""

TIMING_SECONDS = 10.0
"""How long submodels may be timed, all together; larger ones are then left out."""


def machine_memory() -> int | None:
    """Return the bytes that are free here, in a container what it has left; None if unknown."""
    known = [found for found in (_system_memory(), _group_memory()) if found is not None]
    return min(known, default=None)


def _system_memory() -> int | None:
    return _kernel_says(Path("/proc/meminfo"), "MemAvailable:")


def _group_memory() -> int | None:
    """Return what a container has left, where it has a limit of its own."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = (group / "memory.current").read_text(encoding="ascii").strip()
        return None if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return None


def held_memory() -> int | None:
    """Return the bytes that this process holds, without what it maps of files; None if unknown."""
    return _kernel_says(Path("/proc/self/status"), "RssAnon:")


def _kernel_says(file: Path, key: str) -> int | None:
    """Return the bytes that stand behind a key in one of Linux' files; None if there is none."""
    try:
        for line in file.read_text(encoding="ascii").splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def time_submodels(
    family: Family, signature: Signature, batch_size: int, device: torch.device
) -> tuple[float, ...]:
    """Time a training step of each submodel, smallest first, as far as the time allows."""
    deadline = time.monotonic() + TIMING_SECONDS
    inputs = signature.example(batch_size, device)
    found: list[float] = []
    with torch.random.fork_rng(devices=[]):
        for spec in family.specs:
            if time.monotonic() > deadline:
                break
            model = family.build(spec).to(device)
            steps = []
            for _ in range(3):  # the first one warms up: the best counts
                started = time.perf_counter()
                torch.autograd.backward(model(inputs).square().mean())
                if device.type == "cuda":
                    torch.cuda.synchronize(device)  # kernels run on when the call is back
                steps.append(time.perf_counter() - started)
                if time.monotonic() > deadline:
                    break
            found.append(min(steps))
    return tuple(found)
