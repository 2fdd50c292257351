"""What a run cost: the price of each submodel, who trained which, bytes and MACs spent.

A trained task counts as three forward passes (a backward pass costs about two) over the client's
examples, for each local epoch. MACs are those of all layers and all classifiers that are trained.
"""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nefl.artifacts.notes import PARTITION
from nefl.data.partition import Partition
from nefl.errors import NeflError
from nefl.nesting.price import SubmodelProfile
from nefl.report.reading.log_lines import Assignment
from nefl.report.reading.runs import Run, mean

Sizes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Costs:
    """What the submodels of a run cost.

    Attributes:
        profiles: one for each submodel; empty where they are not known.
        unknown: why they are not known.
    """

    profiles: tuple[SubmodelProfile, ...] = ()
    unknown: str = ""


def costs_of(run: Run) -> Costs:
    """Return the costs of a run's submodels: as noted, or counted anew where they are not."""
    if run.facts is not None and run.facts.submodels:
        return Costs(run.facts.submodels)
    from nefl.report.reading.rebuilt import profiles_again  # loads torch

    try:
        return Costs(profiles_again(run))
    except NeflError as error:
        return Costs(unknown=str(error))


def client_sizes(run: Run) -> Sizes | None:
    """Return how many examples each client has, if the folder tells."""
    try:
        return Partition.load(run.path / PARTITION).sizes
    except (NeflError, OSError):
        return None


def assignments(run: Run, costs: Costs, sizes: Sizes | None) -> list[Assignment] | None:
    """Return who trained what in each round: from the log, or drawn again from the seed."""
    if all(entry.clients for entry in run.rounds):
        return [entry.clients for entry in run.rounds]
    from nefl.report.reading.rebuilt import assignments_again  # loads torch

    return assignments_again(run, costs.profiles, sizes)


def trained_totals(run: Run) -> Counter[int]:
    """Return how many updates of each submodel counted over the run."""
    totals: Counter[int] = Counter()
    for entry in run.rounds:
        totals.update(entry.trained)
    return totals


def bytes_spent(run: Run) -> int:
    """Return the bytes sent to clients and back in the rounds that counted."""
    return sum(entry.bytes_down + entry.bytes_up for entry in run.rounds)


def macs_by_round(run: Run, costs: Costs) -> list[float]:
    """Return the MACs that the counted updates of each round took, or nothing if not known.

    Older logs do not tell; then a submodel costs what it does on average over a run's rounds, and
    where it is not known who trained, every client counts with the mean number of examples.
    """
    if run.rounds and all(math.isfinite(entry.macs) for entry in run.rounds):
        return [entry.macs for entry in run.rounds]
    sizes = client_sizes(run)
    if sizes is None or not costs.profiles or run.config is None:
        return []
    price = {p.index: run.config.local.epochs * p.train_macs for p in costs.profiles}
    who = assignments(run, costs, sizes)
    if who is None:
        each = mean([float(size) for size in sizes])
        return [
            sum(price.get(k, math.nan) * n * each for k, n in entry.trained.items())
            for entry in run.rounds
        ]
    return [
        sum(
            price.get(k, math.nan) * int(sizes[list(clients)].sum())
            for k, clients in assignment.items()
        )
        for assignment in who
    ]


def macs_spent(run: Run, costs: Costs) -> float:
    """Return the MACs of all updates that counted, not-a-number where they are not known."""
    spent = macs_by_round(run, costs)
    return sum(spent) if spent else math.nan
