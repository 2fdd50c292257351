"""Lines of a run's log, read leniently: fields that are missing or strange count as unknown."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_LARGEST = 2**63

Assignment = Mapping[int, tuple[int, ...]]
"""The clients that trained each submodel in a round, by its number."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that brought no update: the client, the submodel (0 if unknown) and why."""

    client: int
    submodel: int
    reason: str


@dataclass(frozen=True, slots=True)
class RoundEntry:
    """What a finished round brought.

    Attributes:
        number: the round, from 1.
        scores: the run's primary metric of each submodel, smallest first; empty where it was not
            measured.
        loss: mean training loss of the clients.
        trained: how many updates of each submodel counted, by its number.
        clients: which clients trained each submodel, by its number; empty in older logs.
        tasks: how many clients were given a task.
        bytes_down: bytes sent to clients.
        bytes_up: bytes of updates that counted.
        seconds: wall time with evaluation and checkpoints.
        failures: what failed or was refused.
        attempt: how often the round was tried before.
        simulated: simulated seconds and counts, where devices are simulated.
        metrics: everything that was measured of each submodel, by the metric's name.
        test_loss: of each submodel, where it was measured.
        discarded: updates for which the round had no place when it closed.
        tiers: by tier or kind of device, how many clients were asked, counted and discarded; empty
            where rounds wait for everybody.
        macs: of all local steps of updates that counted; not-a-number in older logs.
    """

    number: int
    scores: tuple[float, ...]
    loss: float
    trained: Mapping[int, int]
    clients: Assignment
    tasks: int
    bytes_down: int
    bytes_up: int
    seconds: float
    failures: tuple[Failure, ...]
    attempt: int
    simulated: Mapping[str, float]
    metrics: Mapping[str, tuple[float, ...]]
    test_loss: tuple[float, ...] = ()
    discarded: tuple[Failure, ...] = ()
    tiers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    macs: float = math.nan


@dataclass(frozen=True, slots=True)
class Attempt:
    """A round that did not count, and why."""

    number: int
    why: str
    failures: tuple[Failure, ...]


def read_round(event: Mapping[str, Any], primary: str) -> RoundEntry | None:
    """Return a round's entry, or nothing if the line does not even say which round it is.

    Args:
        event: the line.
        primary: the name of the run's primary metric.
    """
    number = event.get("round")
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        return None
    clients = {
        k: tuple(_whole(client) for client in listed)
        for k, listed in _by_submodel(event.get("clients")).items()
        if isinstance(listed, list)
    }
    wall = event.get("wall_seconds", event.get("seconds"))
    metrics = read_metrics(event)
    return RoundEntry(
        number=number,
        scores=metrics.get(primary, ()),
        loss=_real(event.get("loss")),
        trained={k: _whole(n) for k, n in _by_submodel(event.get("trained")).items()},
        clients=clients,
        tasks=_whole(event.get("tasks")),
        bytes_down=_whole(event.get("bytes_down")),
        bytes_up=_whole(event.get("bytes_up")),
        seconds=max(0.0, _real(wall)) if math.isfinite(_real(wall)) else 0.0,
        failures=_failures(event),
        discarded=_failures(event, "discarded"),
        tiers={
            str(tier): {str(what): _whole(n) for what, n in _table(counts).items()}
            for tier, counts in _table(event.get("tiers")).items()
        },
        attempt=_whole(event.get("attempt")),
        macs=_real(event.get("macs")),
        metrics=metrics,
        test_loss=tuple(map(_real, _list(event.get("test_loss")))),
        simulated={
            str(k): _real(v) for k, v in _table(event.get("simulated")).items() if _is_number(v)
        },
    )


def read_metrics(event: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """Return what a line says was measured of each submodel, by the metric's name."""
    found = {str(name): _list(values) for name, values in _table(event.get("metrics")).items()}
    return {name: tuple(map(_real, values)) for name, values in found.items() if values}


def read_attempt(event: Mapping[str, Any]) -> Attempt | None:
    """Return a round that did not count, or nothing if the line does not say which it was."""
    number = event.get("round")
    if not isinstance(number, int):
        return None
    return Attempt(number, str(event.get("why", "")), _failures(event))


def _failures(event: Mapping[str, Any], key: str = "failures") -> tuple[Failure, ...]:
    return tuple(
        Failure(_whole(f.get("client"), -1), _whole(f.get("submodel")), str(f.get("reason", "")))
        for f in _list(event.get(key))
        if isinstance(f, Mapping)
    )


def _by_submodel(value: Any) -> dict[int, Any]:
    numbers = {k: v for k, v in _table(value).items() if str(k).isdecimal() and len(str(k)) < 10}
    return {int(k): v for k, v in numbers.items() if int(k) > 0}


def _table(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    # Whole numbers without end are no counts of anything, and cannot be made real ones.
    small = isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST
    return small or isinstance(value, float)


def _real(value: Any) -> float:
    return float(value) if _is_number(value) else math.nan


def _whole(value: Any, otherwise: int = 0) -> int:
    return int(value) if _is_number(value) and math.isfinite(value) else otherwise
