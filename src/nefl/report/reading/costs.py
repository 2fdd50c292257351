"""What a run cost: the price of each submodel, who trained which, bytes and MACs spent.

A trained task counts as three forward passes (a backward pass costs about two) over the client's
examples, for each local epoch. MACs are those of all layers and all classifiers that are trained.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from nefl.artifacts.runfolder import PARTITION
from nefl.config import ModelConfig, RunConfig
from nefl.data.augment import make_transform
from nefl.data.catalog import DATASETS
from nefl.data.partition import Partition
from nefl.errors import NeflError
from nefl.methods import capability_levels, family_of
from nefl.nesting.profile import SubmodelProfile, profile_family
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family
from nefl.references import is_reference
from nefl.report.reading.log_lines import RoundEntry
from nefl.report.reading.runs import Run, mean
from nefl.server.cohort import CohortPlan, assign_submodels, sample_cohort
from nefl.server.devices import Fleet
from nefl.setting import optimiser_copies
from nefl.tasks.images import augmentation

Sizes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Costs:
    """What the submodels of a run cost.

    Attributes:
        profiles: one for each submodel; empty where they are not known.
        family: the family itself, where it could be built again.
        unknown: why something is missing, empty if nothing is.
    """

    profiles: tuple[SubmodelProfile, ...] = ()
    family: Family | None = None
    unknown: str = ""


def costs_of(run: Run) -> Costs:
    """Return the costs of a run's submodels, without its data and without running user code."""
    config = run.config
    if config is None:
        return Costs(unknown="its settings are of another version")
    if is_reference(config.model.name):
        # A folder that came from elsewhere must not make this program import anything.
        noted = run.facts.submodels if run.facts else ()
        return Costs(noted, unknown=f"{config.model.name} is a model of the user's own")
    try:
        signature, local = _signature_of(run, config), config.local
        costs = _costs(config.model, signature, local.batch_size, optimiser_copies(local))
    except NeflError as error:
        return Costs(unknown=str(error))
    if costs.family is not None and run.fingerprint not in ("", costs.family.fingerprint):
        return Costs(unknown="this version of nefl builds another family for its settings")
    return costs


@lru_cache(maxsize=64)
def _costs(model: ModelConfig, signature: Signature, batch: int, copies: int) -> Costs:
    family = family_of(model, signature)
    return Costs(tuple(profile_family(family, signature, batch, copies)), family)


def _signature_of(run: Run, config: RunConfig) -> Signature:
    """Return what a run's models take and give: as noted, or as its data set is known."""
    if run.facts is not None:
        return run.facts.signature
    known = DATASETS.get(config.data.name)
    if known is None:
        raise NeflError(f"{config.data.name}: its shape and classes are not known")
    channels = known.input_shape[0]
    # Only the shape is asked for, so that any mean and deviation will do.
    plain = (0.0,) * channels, (1.0,) * channels
    policy = augmentation(config, config.data.name)
    transform = make_transform(policy, *plain, known.input_shape, train=True)
    return Signature(transform.output_shape, known.classes)


def client_sizes(run: Run) -> Sizes | None:
    """Return how many examples each client has, if the folder tells."""
    try:
        return Partition.load(run.path / PARTITION).sizes
    except (NeflError, OSError):
        return None


Assignment = Mapping[int, tuple[int, ...]]
"""The clients that trained each submodel in a round, by its number."""


def assignments(run: Run, costs: Costs, sizes: Sizes | None) -> list[Assignment] | None:
    """Return who trained what in each round: from the log, or drawn again from the seed.

    Older logs only count. A cohort is a matter of settings and seed, so it can be drawn again; it
    is taken if its counts are those of the log in every round.
    """
    if all(entry.clients for entry in run.rounds):
        return [entry.clients for entry in run.rounds]
    config = run.config
    submodels = len(costs.profiles) or len(run.scores)
    if config is None or not submodels:
        return None
    fleet = None
    if config.clients.capability == "devices":
        if sizes is None or not costs.profiles:
            return None
        fleet = Fleet(config.clients, costs.profiles, config.local.epochs, sizes, config.seed)
    levels = capability_levels(config.model, submodels)
    plan = CohortPlan(config.clients, submodels, config.seed, fleet, levels=levels)
    found = [entry.clients or _drawn_again(entry, plan) for entry in run.rounds]
    agreed = all(_counts(a) == dict(e.trained) for a, e in zip(found, run.rounds, strict=True))
    return found if agreed else None


def _drawn_again(entry: RoundEntry, plan: CohortPlan) -> Assignment:
    failed = {failure.client for failure in entry.failures}
    cohort = sample_cohort(plan, entry.number, entry.attempt)
    clients: dict[int, tuple[int, ...]] = {}
    for task in assign_submodels(cohort, plan, entry.number):
        if task.client not in failed:
            clients[task.submodel] = (*clients.get(task.submodel, ()), task.client)
    return clients


def _counts(assignment: Assignment) -> dict[int, int]:
    return {submodel: len(clients) for submodel, clients in assignment.items() if clients}


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

    Where it is not known who trained, every client counts with the mean number of examples.
    """
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
