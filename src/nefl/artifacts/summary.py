"""What came out of a run, told from its log and its final weights."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nefl.artifacts.checkpoint import state_sha256
from nefl.artifacts.notes import read_log
from nefl.measured import MeasuredBy
from nefl.nesting.coverage import min_coverage
from nefl.nesting.spec import Family
from nefl.state import ServerState


@dataclass(frozen=True)
class _Simulated:
    nested: float
    full: float
    strong_only: float
    strong_clients: float
    sat_out: float


@dataclass(frozen=True)
class _Discarded:
    submodel: int


@dataclass(frozen=True)
class _Round:
    """What a summary takes of a round's entry in the log."""

    round: int
    metrics: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    trained: Mapping[int, int] = field(default_factory=dict)
    wall_seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    failures: tuple[Any, ...] = ()
    discarded: tuple[_Discarded, ...] = ()
    tiers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    simulated: _Simulated | None = None


_ROUND = TypeAdapter(_Round)


def _read(event: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a summary takes of a line, each in its type; nothing if it is no round's."""
    if event.get("event") != "round":
        return None
    try:
        return asdict(_ROUND.validate_python(event))
    except ValidationError:
        return None


def rounds_of(run: Path, until: int) -> list[dict[str, Any]]:
    """Return the log's entry for each round up to one; of a round that was run again, the last.

    A line that does not have the fields of a round, or others in their place, is passed over.
    """
    events = ({key: v for key, v in event.items() if v is not None} for event in read_log(run))
    entries = {entry["round"]: entry for entry in map(_read, events) if entry is not None}
    return [entry for number, entry in sorted(entries.items()) if number <= until]


def averages(run: Path, until: int, metric: str) -> list[float]:
    """Return the means of a metric over submodels that a run's log has up to a round."""
    found = (r["metrics"].get(metric) for r in rounds_of(run, until))
    return [_mean(values) for values in found if values and None not in values]


def was_measured(run: Path, round_number: int) -> bool:
    """Whether the submodels were measured after a round."""
    rounds = rounds_of(run, round_number)
    return bool(rounds and rounds[-1]["round"] == round_number and rounds[-1]["metrics"])


def summarise(run: Path, family: Family, state: ServerState, primary: MeasuredBy) -> dict[str, Any]:
    """Return what came out of a run; `primary` is what "worst", "average" and "best" speak of."""
    rounds = rounds_of(run, state.round_number)
    trained: list[dict[int, int]] = [r["trained"] for r in rounds]
    updates = {k: sum(t.get(k, 0) for t in trained) for k in range(1, len(family) + 1)}
    covering = {
        key: min_coverage(family, dict.fromkeys(key, 1)) > 0 for key in map(frozenset, trained)
    }
    last: Mapping[str, Sequence[float | None]] = next(
        (r["metrics"] for r in reversed(rounds) if r["metrics"]), {}
    )
    measured = {name: list(values) for name, values in last.items()}
    values = measured.get(primary.name, [])
    known = [value for value in values if value is not None]
    return {
        "metric": primary.name,
        primary.name: values,
        "metrics": measured,
        "worst": values[0] if values else None,
        "average": _mean(known) if known and len(known) == len(values) else None,
        "best": primary.best(known) if known else None,
        "rounds": state.round_number,
        "seconds": sum(r["wall_seconds"] for r in rounds),
        "bytes_down": sum(r["bytes_down"] for r in rounds),
        "bytes_up": sum(r["bytes_up"] for r in rounds),
        "failures": sum(len(r["failures"]) for r in rounds),
        "discarded": _discarded(rounds),
        "coverage": {
            "updates_by_submodel": updates,
            "fewest_updates_of_an_element": min_coverage(family, updates),
            "rounds_that_covered_every_element": sum(covering[frozenset(t)] for t in trained),
        },
        "simulated": _simulated(rounds),
        "state_sha256": state_sha256(state),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _discarded(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return how many updates came too late, by submodel and tier; None where rounds wait."""
    tiers: dict[str, Counter[str]] = {}
    for entry in rounds:
        for tier, counts in entry["tiers"].items():
            tiers.setdefault(tier, Counter()).update(counts)
    if not tiers:
        return None
    by_submodel = Counter(each["submodel"] for entry in rounds for each in entry["discarded"])
    return {
        "updates": by_submodel.total(),
        "by_submodel": dict(sorted(by_submodel.items())),
        "by_tier": {tier: dict(counts) for tier, counts in sorted(tiers.items())},
    }


def _simulated(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Return simulated seconds over all rounds, and how many clients took part on average."""
    times = [r["simulated"] for r in rounds if r["simulated"]]
    if not times:
        return None
    return {
        "nested_seconds": sum(t["nested"] for t in times),
        "full_seconds": sum(t["full"] for t in times),
        "strong_only_seconds": sum(t["strong_only"] for t in times),
        "strong_clients_per_round": _mean([t["strong_clients"] for t in times]),
        "rounds_without_strong_clients": sum(not t["strong_clients"] for t in times),
        "sat_out_per_round": _mean([t["sat_out"] for t in times]),
    }
