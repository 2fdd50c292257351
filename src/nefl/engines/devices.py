"""Which devices there are, and which of them a run takes; nothing else asks torch for them."""

import os
from collections.abc import Sequence
from typing import Any

import torch

from nefl.config import EngineConfig
from nefl.engines.machine import machine_memory
from nefl.errors import ConfigError
from nefl.moving import CUDA

UNFIT = {
    "meta": "holds no values",
    "mps": "has no float64, in which updates and norms are summed",
}
"""Devices of torch that nothing can be trained on, each with the reason."""

DATA_SHARE = 0.5
"""The share of a device's free memory that examples may take; models need the rest."""

FIRST_WITH_BF16 = 8
"""The first generation of CUDA devices (their compute capability) that has bf16 and TF32."""


def gpus() -> tuple[torch.device, ...]:
    """Return the CUDA devices that torch can use here."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return tuple(torch.device(CUDA, number) for number in range(count))


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that are free on a device; None if unknown.

    On a GPU those that torch keeps in store for this process count as free.
    """
    if device.type != CUDA:
        return machine_memory()
    free, _ = torch.cuda.mem_get_info(device)
    stored = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free) + stored


def generation(device: torch.device) -> int:
    """Return the generation of a CUDA device, the first number of its compute capability."""
    return int(torch.cuda.get_device_capability(device)[0])


def describe_gpu(device: torch.device) -> dict[str, Any]:
    """Return what torch knows of a CUDA device."""
    known = torch.cuda.get_device_properties(device)
    return {
        "device": str(device),
        "name": known.name,
        "memory": known.total_memory,
        "free_memory": free_bytes(device),
        "capability": f"{known.major}.{known.minor}",
    }


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what it was given; a CPU always has."""
    if device.type == CUDA:
        torch.cuda.synchronize(device)


def use(device: torch.device) -> None:
    """Let torch raise what it raises where a device is not here, or cannot be trained on."""
    torch.empty(0, dtype=torch.float64, device=device)  # sums need it


def pick_device(name: str, setting: str = "engine.devices") -> torch.device:
    """Return the device of a name; `auto` takes the first CUDA device, if there is one.

    Args:
        name: as torch calls it, or `auto`.
        setting: where the name stands, for the error message.

    Raises:
        ConfigError: if there is no such device here.
    """
    if name == "auto":
        return next(iter(gpus()), torch.device("cpu"))
    try:
        device = torch.device(name)
        if device.type in UNFIT:
            raise ConfigError(f"{setting} {name!r}: {UNFIT[device.type]}; use cpu or cuda")
        use(device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError(f"{setting} {name!r}: {str(error).splitlines()[0]}") from None
    return torch.device(CUDA, device.index or 0) if device.type == CUDA else device


def pick_devices(names: Sequence[str]) -> tuple[torch.device, ...]:
    """Return the devices of names; `auto` takes every CUDA device, or the CPU.

    Raises:
        ConfigError: if one of them is not here, or they are not of one kind.
    """
    if tuple(names) == ("auto",):
        return gpus() or (torch.device("cpu"),)
    devices = tuple(map(pick_device, names))
    kinds = sorted({device.type for device in devices})
    if len(kinds) > 1:
        raise ConfigError(
            f"engine.devices is {list(names)}: {' and '.join(kinds)} round differently, so results "
            "would depend on who trains where; name devices of one kind"
        )
    return devices


def place_workers(engine: EngineConfig, per_round: int) -> tuple[torch.device, ...]:
    """Return the device of each worker process; none means to train in this process.

    Args:
        engine: what the run asks for.
        per_round: clients of a round; more workers than these would have nothing to do.

    Raises:
        ConfigError: if there is no such device here.
    """
    if engine.name == "serial":
        return ()
    devices = pick_devices(engine.devices)
    count = engine.workers or min(_on_all(engine, devices), per_round)
    if engine.name == "auto" and count == 1:
        return ()
    return tuple(devices[number % len(devices)] for number in range(count))


def _on_all(engine: EngineConfig, devices: Sequence[torch.device]) -> int:
    """Return how many processes all devices have, where their number is not given."""
    if engine.per_device or len(devices) > 1 or devices[0].type != "cpu":
        return len(devices) * (engine.per_device or 1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // engine.threads)


def place_sums(engine: EngineConfig, workers: Sequence[torch.device]) -> torch.device:
    """Return where the server adds updates up.

    Unless told, it is where they are: on the device where one process trains, in main memory where
    workers leave them there.

    Args:
        engine: what the run asks for.
        workers: the device of each worker process.
    """
    if engine.sums != "auto":
        return pick_device(engine.sums, "engine.sums")
    return torch.device("cpu") if workers else pick_device(engine.devices[0])


def data_fits(examples: int, device: torch.device, processes: int) -> bool:
    """Whether examples shall lie on a device, where every process has them for itself.

    On a CPU they never do: they are mapped from their files.

    Args:
        examples: bytes of all examples.
        device: the device.
        processes: how many processes train on it.
    """
    free = None if device.type == "cpu" else free_bytes(device)
    return free is not None and examples * processes <= DATA_SHARE * free


def check_precision(precision: str, devices: Sequence[torch.device]) -> None:
    """Refuse numbers that a device does not compute in.

    Raises:
        ConfigError: naming the device and the remedy.
    """
    for device in devices:
        reason = _unfit_precision(precision, device)
        if reason is not None:
            raise ConfigError(f"local.precision {precision!r}: {device} {reason}")


def has_precision(precision: str, device: torch.device) -> bool:
    """Whether a device computes in such numbers."""
    return _unfit_precision(precision, device) is None


def _unfit_precision(precision: str, device: torch.device) -> str | None:
    if precision == "float32":
        return None
    if device.type == "cpu":
        return {
            "fp16": "has no fast products of these, and is slower than with float32; take bf16",
            "tf32": "does not have it, GPUs do; take float32 or bf16",
        }.get(precision)
    if precision != "fp16" and generation(device) < FIRST_WITH_BF16:
        return "is of a generation before bf16 and TF32 (compute capability 8); take fp16"
    return None
