"""What a run's settings make once more: its family, what that costs, and who trained what.

Folders of earlier versions note less, and none holds the family itself. Building one needs torch,
so what only compares runs imports this where a folder leaves it no choice.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from nefl.config import ModelConfig, RunConfig
from nefl.data.augment import make_transform
from nefl.data.catalog import DATASETS
from nefl.errors import NeflError, RunError
from nefl.methods import built_in_levels, family_of, method_reference
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family
from nefl.references import is_reference
from nefl.report.reading.log_lines import Assignment, RoundEntry
from nefl.report.reading.runs import Run
from nefl.running.costs import run_profiles
from nefl.server.cohort import CohortPlan, assign_submodels, sample_cohort
from nefl.server.devices import Fleet
from nefl.tasks.images import augmentation


def family_again(run: Run) -> Family:
    """Return the family of a run, without its data and without running user code.

    Raises:
        NeflError: saying why it cannot be built.
    """
    return _family_again(run, _settings(run))


def _family_again(run: Run, config: RunConfig) -> Family:
    family = _built(config.model, _signature_of(run, config))
    if run.fingerprint not in ("", family.fingerprint):
        raise RunError("this version of nefl builds another family for its settings")
    return family


def profiles_again(run: Run) -> tuple[SubmodelProfile, ...]:
    """Return what the submodels of a run cost, counted anew.

    Raises:
        NeflError: saying why its family cannot be built.
    """
    config = _settings(run)
    return run_profiles(config, _family_again(run, config), _signature_of(run, config))


def _settings(run: Run) -> RunConfig:
    if run.config is None:
        raise RunError("its settings are of another version")
    if is_reference(run.config.model.name):
        # A folder that came from elsewhere must not make this program import anything.
        raise RunError(f"{run.config.model.name} is a model of the user's own")
    if method_reference(run.config.model.method) is not None:
        raise RunError(f"{run.config.model.method} is a method of the user's own")
    return run.config


@lru_cache(maxsize=64)
def _built(model: ModelConfig, signature: Signature) -> Family:
    return family_of(model, signature)


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


def assignments_again(
    run: Run, profiles: tuple[SubmodelProfile, ...], sizes: npt.NDArray[np.int64] | None
) -> list[Assignment] | None:
    """Return who trained what in each round, drawn from the seed where the log only counts.

    A cohort is a matter of settings and seed. It is taken if its counts are those of the log in
    every round.
    """
    config = run.config
    submodels = len(profiles) or len(run.scores)
    if config is None or not submodels:
        return None
    fleet = None
    if config.clients.capability == "devices":
        if sizes is None or not profiles:
            return None
        fleet = Fleet(config.clients, profiles, config.local.epochs, sizes, config.seed)
    levels, left_out = levels_of(config.model)
    plan = CohortPlan(
        config.clients, submodels, config.seed, fleet, levels=levels, left_out=left_out
    )
    found = [entry.clients or _drawn_again(entry, plan) for entry in run.rounds]
    agreed = all(_counts(a) == dict(e.trained) for a, e in zip(found, run.rounds, strict=True))
    return found if agreed else None


def levels_of(model: ModelConfig) -> tuple[int, int]:
    """Return how many levels of capability there were, and how many took no part.

    A user's own code is not asked.
    """
    return (0, 0) if method_reference(model.method) is not None else built_in_levels(model)


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
