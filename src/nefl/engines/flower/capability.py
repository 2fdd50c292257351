"""What a node can do: what it says of itself, and what that allows.

A client answers the query `capability` with what its operator wrote into its node config and what
it finds out: memory, threads and, if it is asked to, how long a training step of each submodel
takes.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import torch
from flwr.app import ConfigRecord, RecordDict
from pydantic import TypeAdapter, ValidationError

from nefl.engines.devices import free_bytes, pick_device
from nefl.engines.machine import HEADROOM
from nefl.errors import UpdateError

DEVICE = "device"
"""The key of the node config that says where to compute."""

_QUERY, _RECORD = "nefl-query", "nefl-capability"
_ANSWER_BYTES = 100_000
_VERSION_LENGTH = 40


@dataclass(frozen=True)
class Capability:
    """What a node says of itself. Nothing of it is trusted beyond what the operator allows.

    Attributes:
        client: its number among the clients, from the node config's `partition-id`.
        tier: the tier in its node config.
        memory: bytes that are free for training, where that happens: on the CUDA device or here.
        threads: cores it may use.
        step_seconds: seconds of a training step for each submodel, smallest first; as many as were
            timed.
        versions: of nefl and torch there, by name.
    """

    client: int | None = None
    tier: int | None = None
    memory: int | None = None
    threads: int | None = None
    step_seconds: tuple[float, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


_CAPABILITY = TypeAdapter(Capability)


def query_content(run: Mapping[str, Any], *, measure: bool) -> RecordDict:
    """Write the query; a node that is to measure must know the run."""
    return RecordDict(
        {
            _QUERY: ConfigRecord(
                {"run": json.dumps(dict(run)) if measure else "", "measure": measure}
            )
        }
    )


def read_query(content: RecordDict) -> dict[str, Any] | None:
    """Return the run whose submodels are to be timed, or nothing if none are."""
    record = content.config_records.get(_QUERY)
    if record is None or not record.get("measure"):
        return None
    run: dict[str, Any] = json.loads(str(record["run"]))
    return run


def capability_content(capability: Capability) -> RecordDict:
    """Write the answer to the query."""
    return RecordDict({_RECORD: ConfigRecord({"capability": json.dumps(asdict(capability))})})


def read_capability(content: RecordDict) -> Capability:
    """Read the answer to the query.

    Raises:
        UpdateError: if it is not one.
    """
    try:
        text = str(content.config_records[_RECORD]["capability"])
        if len(text) > _ANSWER_BYTES:
            raise UpdateError(f"says {len(text)} characters of its capability")
        return _CAPABILITY.validate_json(text)
    except (KeyError, ValidationError):
        raise UpdateError("does not answer the query for its capability") from None


def training_device(
    node_config: Mapping[str, object], run: Mapping[str, Any]
) -> torch.device | None:
    """Return where this node trains: what its node config says, else the run; None if neither does.

    Raises:
        ConfigError: if there is no such device here.
    """
    settings = run.get("config", {}).get("engine", {})
    name = node_config.get(DEVICE) or next(iter(settings.get("devices", ())), None)
    return None if name is None else pick_device(str(name))


def own_capability(
    node_config: Mapping[str, object], device: torch.device | None = None
) -> Capability:
    """Return what this node knows of itself without computing anything.

    Args:
        node_config: what its operator wrote.
        device: where it trains, if that is known.
    """
    return Capability(
        client=_whole(node_config.get("partition-id")),
        tier=_whole(node_config.get("tier")),
        memory=free_memory(node_config, device),
        threads=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        versions={"nefl": version("nefl"), "torch": str(torch.__version__)},
    )


def check_version(capability: Capability) -> None:
    """Refuse a node of another version of nefl; releases that differ in the last number go along.

    One that does not say its version is taken: what it sends is checked all the same.

    Raises:
        UpdateError: naming both versions.
    """
    theirs, ours = capability.versions.get("nefl", "")[:_VERSION_LENGTH], version("nefl")
    if theirs and theirs.split(".")[:2] != ours.split(".")[:2]:
        raise UpdateError(f"has nefl {theirs}, and the server {ours}; install the server's there")


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def free_memory(
    node_config: Mapping[str, object], device: torch.device | None = None
) -> int | None:
    """Return the bytes that training may take: the node config's `memory`, or what is free.

    What is free on a CUDA device counts if training happens there, otherwise the machine's memory.
    """
    given = node_config.get("memory")
    bounds = [int(given)] if isinstance(given, int | float) else []
    here = free_bytes(device or torch.device("cpu"))
    return min([*bounds, *([] if here is None else [here])], default=None)


def largest_in_memory(memory: int | None, needs: Sequence[int]) -> int:
    """Return the largest submodel that trains in so many bytes; 0 if none does."""
    if memory is None:
        return len(needs)
    return max((k for k, need in enumerate(needs, start=1) if need * HEADROOM <= memory), default=0)
