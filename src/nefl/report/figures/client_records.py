"""The rows that figures of clients are drawn from: their labels, tiers and simulated time."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nefl.artifacts.notes import PARTITION
from nefl.config import RunConfig
from nefl.data.partition import Partition
from nefl.errors import NeflError
from nefl.references import is_reference
from nefl.report.figures.drawn_run import DrawnRun, Record, metric_of
from nefl.report.figures.run_records import SCORE
from nefl.report.reading.costs import client_sizes
from nefl.report.reading.rebuilt import levels_of
from nefl.report.reading.runs import mean
from nefl.report.reading.scores import drawn_score
from nefl.server.cohort import tier_of
from nefl.server.devices import Fleet
from nefl.tasks.finding import load_task

MAX_CLIENTS_DRAWN = 200

Counts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Labels:
    """Labels of one partition.

    Attributes:
        runs: the runs that share it.
        class_names: the classes.
        counts: for each client, its examples of each class.
    """

    runs: tuple[str, ...]
    class_names: tuple[str, ...]
    counts: Counts

    @property
    def records(self) -> list[Record]:
        """The examples of each class at each client, as far as clients are drawn."""
        return [
            {
                "run": self.runs[0],
                "client": client,
                "class": self.class_names[label],
                "examples": count,
            }
            for client, row in enumerate(self.counts[:MAX_CLIENTS_DRAWN])
            for label, count in enumerate(row)
        ]


def labels_of(drawn: Sequence[DrawnRun]) -> list[Labels]:
    """Return the labels of each different partition."""
    runs: dict[tuple[tuple[str, ...], Counts], list[str]] = {}
    for each in drawn:
        names, counts = _label_counts(each)
        if counts:
            runs.setdefault((tuple(names), counts), []).append(each.run.name)
    return [Labels(tuple(shared), *found) for found, shared in runs.items()]


def _label_counts(each: DrawnRun) -> tuple[Sequence[str], Counts]:
    run = each.run
    if run.facts is not None and run.facts.label_counts:
        return run.facts.class_names, run.facts.label_counts
    if run.facts is not None and not run.facts.class_names:
        each.missing["labels"] = "its examples have no classes"
        return (), ()
    if run.config is None or not _at_hand(run.config):
        each.missing["labels"] = "the folder does not note them, and the data is not at hand"
        return (), ()
    try:
        # Into the reader's own cache: a run that is looked at does not say where to write. And
        # without its metrics, which may be code of the user's.
        data = replace(run.config.data, cache=None)
        task = load_task(replace(run.config, data=data, metrics=()))
        labels = task.train_labels()
        if labels is None:
            each.missing["labels"] = "its examples have no classes"
            return (), ()
        counts = Partition.load(run.path / PARTITION).label_counts(labels, task.classes)
    except (NeflError, OSError, IndexError) as error:
        each.missing["labels"] = str(error)
        return (), ()
    return task.class_names, tuple(map(tuple, counts.tolist()))


def _at_hand(config: RunConfig) -> bool:
    """Whether the data can be asked without a download and without code of the user's."""
    data = config.data
    if is_reference(data.name) or is_reference(config.task):
        return False
    return data.name == "digits" or (data.root is not None and Path(data.root).exists())


def tier_records(drawn: Sequence[DrawnRun]) -> list[Record]:
    """Return how often clients of each tier, or kind of device, trained each submodel."""
    records = []
    for each in drawn:
        config, submodels = each.run.config, len(each.run.scores) or len(each.costs.profiles)
        who = each.assignments
        if config is None or who is None or not submodels:
            each.missing["tiers"] = "the log does not say who trained what"
            continue
        tier = _tier_of(each, submodels)
        counts = Counter(
            (tier(client), k) for held in who for k, clients in held.items() for client in clients
        )
        for name in sorted({tier(client) for client in range(config.clients.count)}):
            records += [
                {**each.names, "tier": name, "submodel": k, "updates": counts[name, k]}
                for k in range(1, submodels + 1)
            ]
    return records


def _tier_of(each: DrawnRun, submodels: int) -> Callable[[int], str]:
    config, sizes = each.run.config, client_sizes(each.run)
    assert config is not None  # noqa: S101 - asked for before
    if config.clients.capability == "devices" and sizes is not None:
        fleet = Fleet(config.clients, each.costs.profiles, config.local.epochs, sizes, config.seed)
        return lambda client: fleet.device(client).name
    count, levels = config.clients.count, levels_of(config.model)[0] or submodels
    return lambda client: f"tier {tier_of(client, count, levels)}"


ALTERNATIVES: Mapping[str, str] = {
    "nested": "nested submodels",
    "full": "full model for everyone",
    "strong_only": "full model where it fits",
}


def discard_records(drawn: Sequence[DrawnRun]) -> list[Record]:
    """Return how many clients of each tier counted, failed and were discarded, over all rounds."""
    records = []
    for each in drawn:
        told: dict[str, Counter[str]] = {}
        for entry in each.run.rounds:
            for tier, counts in entry.tiers.items():
                told.setdefault(tier, Counter()).update(counts)
        for tier, counts in sorted(told.items()):
            failed = counts["asked"] - counts["counted"] - counts["discarded"]
            became = {"counted": counts["counted"], "discarded": counts["discarded"]}
            records += [
                {**each.names, "tier": tier, "became": what, "clients": n}
                for what, n in (became | {"failed": failed}).items()
            ]
    return records


def timed_records(drawn: Sequence[DrawnRun]) -> list[Record]:
    """Return the average score at each evaluation, and the simulated hours until then."""
    metric = metric_of(drawn)
    records = []
    for each in drawn:
        hours = 0.0
        for entry in each.run.rounds if each.run.metric == metric else ():
            hours += entry.simulated.get("nested", math.nan) / 3600
            if entry.scores and math.isfinite(hours):
                score = drawn_score(metric, mean(entry.scores))
                place = {"round": entry.number, "hours": round(hours, 6)}
                records.append({**each.names, **place, SCORE: score})
    return records


def simulated_records(drawn: Sequence[DrawnRun]) -> list[Record]:
    """Return the simulated hours up to each round, with nested submodels and without."""
    records = []
    for each in drawn:
        if not any(entry.simulated for entry in each.run.rounds):
            each.missing["simulated time"] = "its devices are not simulated"
        sums = dict.fromkeys(ALTERNATIVES, 0.0)
        for entry in each.run.rounds:
            for key, way in ALTERNATIVES.items():
                if key in entry.simulated:
                    sums[key] += entry.simulated[key]
                    records.append(
                        {
                            **each.names,
                            "round": entry.number,
                            "way": way,
                            "hours": round(sums[key] / 3600, 6),
                        }
                    )
    return records
