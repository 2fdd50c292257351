"""The rows that figures are drawn from: plain records, told from runs alone."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from nefl.artifacts.runfolder import PARTITION
from nefl.data import load_dataset
from nefl.data.partition import Partition
from nefl.errors import NeflError
from nefl.methods import capability_levels
from nefl.nesting.coverage import shared_cells
from nefl.references import is_reference
from nefl.report.costs import (
    Assignment,
    Costs,
    assignments,
    client_sizes,
    costs_of,
    trained_totals,
)
from nefl.report.entries import RoundEntry
from nefl.report.runs import Run, mean
from nefl.report.weights import OfSubmodel, l1_norms, newest_state, step_sizes
from nefl.server.cohort import tier_of
from nefl.server.devices import Fleet

Record = dict[str, Any]
MAX_CLIENTS_DRAWN = 200
MAX_POINTS = 4000
"""Points of the lines of one figure; more would be slow to draw and no better to see."""


@dataclass(frozen=True, eq=False)
class Told:
    """A run and what follows from its folder, each worked out when it is first asked for.

    Attributes:
        run: the run.
        missing: what could not be told, and why; filled as it is found out.
    """

    run: Run
    missing: dict[str, str] = field(default_factory=dict)

    @cached_property
    def costs(self) -> Costs:
        """What its submodels cost."""
        found = costs_of(self.run)
        if not found.profiles:
            self.missing["costs"] = found.unknown
        return found

    @cached_property
    def assignments(self) -> list[Assignment] | None:
        """Who trained what in each round."""
        return assignments(self.run, self.costs, client_sizes(self.run))

    @cached_property
    def weights(self) -> tuple[list[OfSubmodel], list[OfSubmodel]]:
        """Step sizes by block, and L1 norms by layer."""
        family = self.costs.family
        if family is None:
            self.missing["weights"] = self.costs.unknown
            return [], []
        state, problem = newest_state(self.run, family)
        if state is None:
            self.missing["weights"] = problem
            return [], []
        return step_sizes(state, family), l1_norms(state, family)


def accuracy_records(told: Sequence[Told]) -> list[Record]:
    """Return a record for each evaluation: worst, average, best and each submodel, in percent."""
    return [
        {
            "run": each.run.name,
            "method": each.run.method,
            "round": entry.number,
            "worst": _percent(entry.accuracy[0]),
            "average": _percent(mean(entry.accuracy)),
            "best": _percent(max(entry.accuracy)),
            **{f"submodel {k}": _percent(a) for k, a in enumerate(entry.accuracy, start=1)},
        }
        for each in told
        for entry in thinned(each.run.evaluated, len(told))
    ]


def thinned(entries: Sequence[RoundEntry], lines: int) -> list[RoundEntry]:
    """Leave out rounds evenly where lines have more points than can be seen; the last one stays."""
    step = math.ceil(len(entries) * lines / MAX_POINTS)
    return [e for n, e in enumerate(entries, start=1) if n == len(entries) or n % step == 0]


def submodel_records(told: Sequence[Told]) -> list[Record]:
    """Return a record for each submodel at each evaluation."""
    return [
        {
            "run": each.run.name,
            "method": each.run.method,
            "round": entry.number,
            "submodel": k,
            "accuracy": _percent(accuracy),
        }
        for each in told
        for entry in thinned(each.run.evaluated, len(told) * len(each.run.accuracy))
        for k, accuracy in enumerate(entry.accuracy, start=1)
    ]


def _percent(share: float) -> float | None:
    return round(100 * share, 2) if math.isfinite(share) else None


def round_records(told: Sequence[Told]) -> list[Record]:
    """Return a record for each round: loss, seconds, MiB, failures."""
    return [
        {
            "run": each.run.name,
            "round": entry.number,
            "loss": round(entry.loss, 4) if math.isfinite(entry.loss) else None,
            "seconds": round(entry.seconds, 3),
            "MiB": round((entry.bytes_down + entry.bytes_up) / 2**20, 3),
            "failures": len(entry.failures),
        }
        for each in told
        for entry in thinned(each.run.rounds, len(told))
    ]


def cost_records(told: Sequence[Told]) -> list[Record]:
    """Return each submodel's accuracy and cost."""
    return [
        {
            "run": each.run.name,
            "submodel": profile.index,
            "accuracy": _percent(each.run.accuracy[profile.index - 1]),
            "MACs": profile.macs_total,
            "parameters": profile.params,
            "bytes": profile.payload_bytes,
            "memory": profile.train_memory_bytes,
        }
        for each in told
        for profile in each.costs.profiles
        if profile.index <= len(each.run.accuracy)
    ]


def step_records(told: Sequence[Told]) -> list[Record]:
    """Return the step size of each block of each submodel."""
    return _of_submodels(told, 0, "block", "step size")


def norm_records(told: Sequence[Told]) -> list[Record]:
    """Return the mean absolute weight of each layer of each submodel."""
    return _of_submodels(told, 1, "layer", "L1 norm")


def _of_submodels(told: Sequence[Told], which: int, place: str, value: str) -> list[Record]:
    return [
        {
            "run": each.run.name,
            "submodel": found.submodel,
            place: found.place,
            value: round(found.value, 6) if math.isfinite(found.value) else None,
        }
        for each in told
        for found in each.weights[which]
    ]


def coverage_records(told: Sequence[Told]) -> list[Record]:
    """Return how often the elements of each shared tensor were trained: mean and least."""
    records = []
    for each in told:
        if each.costs.family is None:
            each.missing["coverage"] = each.costs.unknown
            continue
        totals = trained_totals(each.run)
        updates: dict[str, list[tuple[int, int]]] = {}
        for name, cell in shared_cells(each.costs.family):
            updates.setdefault(name, []).append((cell.numel, sum(totals[k] for k in cell.holders)))
        records += [
            {
                "run": each.run.name,
                "tensor": name,
                "mean": round(sum(n * u for n, u in found) / sum(n for n, _ in found), 1),
                "least": min(u for _, u in found),
            }
            for name, found in updates.items()
        ]
    return records


def label_records(told: Sequence[Told]) -> list[Record]:
    """Return the examples of each class at each client, one set for each different partition."""
    seen: dict[tuple[tuple[int, ...], ...], str] = {}
    records = []
    for each in told:
        names, counts = _label_counts(each)
        if not counts or counts in seen:
            continue
        seen[counts] = each.run.name
        records += [
            {"run": each.run.name, "client": client, "class": names[label], "examples": count}
            for client, row in enumerate(counts[:MAX_CLIENTS_DRAWN])
            for label, count in enumerate(row)
        ]
    return records


def _label_counts(each: Told) -> tuple[Sequence[str], tuple[tuple[int, ...], ...]]:
    run = each.run
    if run.facts is not None and run.facts.label_counts:
        return run.facts.class_names, run.facts.label_counts
    data = run.config.data if run.config else None
    # An older folder does not say: ask the data, but only files at hand, and no user's code.
    at_hand = data is not None and (
        data.name == "digits" or (data.root is not None and Path(data.root).exists())
    )
    if data is None or not at_hand or is_reference(data.name):
        each.missing["labels"] = "the folder does not note them, and the data is not at hand"
        return (), ()
    try:
        options = dict(data.options)
        dataset = load_dataset(data.name, root=data.root, cache=data.cache, options=options)
        partition = Partition.load(run.path / PARTITION)
        counts = partition.label_counts(dataset.train.labels, dataset.classes)
    except (NeflError, OSError, IndexError) as error:
        each.missing["labels"] = str(error)
        return (), ()
    names = dataset.class_names or tuple(map(str, range(dataset.classes)))
    return names, tuple(map(tuple, counts.tolist()))


def tier_records(told: Sequence[Told]) -> list[Record]:
    """Return how often clients of each tier, or kind of device, trained each submodel."""
    records = []
    for each in told:
        config, submodels = each.run.config, len(each.run.accuracy) or len(each.costs.profiles)
        who = each.assignments
        if config is None or who is None or not submodels:
            each.missing["tiers"] = "the log does not say who trained what"
            continue
        tier = _tier_of(each, submodels)
        counts = Counter(
            (tier(client), k) for held in who for k, clients in held.items() for client in clients
        )
        for name in sorted({name for name, _ in counts}):
            records += [
                {"run": each.run.name, "tier": name, "submodel": k, "updates": counts[name, k]}
                for k in range(1, submodels + 1)
            ]
    return records


def _tier_of(each: Told, submodels: int) -> Callable[[int], str]:
    config, sizes = each.run.config, client_sizes(each.run)
    assert config is not None  # noqa: S101 - asked for before
    if config.clients.capability == "devices" and sizes is not None:
        fleet = Fleet(config.clients, each.costs.profiles, config.local.epochs, sizes, config.seed)
        return lambda client: fleet.device(client).name
    count, levels = config.clients.count, capability_levels(config.model, submodels)
    return lambda client: f"tier {tier_of(client, count, levels)}"


ALTERNATIVES: Mapping[str, str] = {
    "nested": "nested submodels",
    "full": "full model for everyone",
    "strong_only": "full model where it fits",
}


def simulated_records(told: Sequence[Told]) -> list[Record]:
    """Return the simulated hours up to each round, with nested submodels and without."""
    records = []
    for each in told:
        sums = dict.fromkeys(ALTERNATIVES, 0.0)
        for entry in each.run.rounds:
            for key, way in ALTERNATIVES.items():
                if key in entry.simulated:
                    sums[key] += entry.simulated[key]
                    records.append(
                        {
                            "run": each.run.name,
                            "round": entry.number,
                            "way": way,
                            "hours": round(sums[key] / 3600, 6),
                        }
                    )
    return records
