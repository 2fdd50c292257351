"""What a run's submodels cost, with its batches, its optimiser and what its method adds."""

from nefl.config import LocalConfig, RunConfig
from nefl.methods import method_of, method_reference, priced
from nefl.nesting.inside import alone
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.profile import profile_family
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family
from nefl.references import own_model
from nefl.running.counted import counted_once

OPTIMISER_COPIES = {"sgd": 0, "adam": 2, "adamw": 2}
"""Numbers that an optimiser keeps for each weight; momentum is one more."""


def run_profiles(
    config: RunConfig, family: Family, signature: Signature
) -> tuple[SubmodelProfile, ...]:
    """Return what a run's submodels cost, with its batches, its optimiser and its method's sets.

    Raises:
        ConfigError: if the model cannot take inputs of that shape.
    """
    objective, copies = method_of(config.model).objective, kept_copies(config)
    # What the user's own code builds may have no hash to be remembered by.
    own = own_model(config.model) or method_reference(config.model.method) is not None
    count = profile_family if own else counted_once
    counted = count(alone(family), signature, config.local.batch_size, copies)
    return priced(counted, family, objective, config.rounds, copies, config.wire)


def kept_copies(config: RunConfig) -> int:
    """Return how many numbers a run keeps for each weight in training, besides its gradient."""
    objective = method_of(config.model).objective
    sets = (*objective.keeps, *objective.receives, *objective.sends)
    return optimiser_copies(config.local) + len(sets)


def optimiser_copies(local: LocalConfig) -> int:
    """Return how many numbers the optimiser keeps for each weight."""
    return OPTIMISER_COPIES[local.optimizer] + (local.optimizer == "sgd" and local.momentum > 0)
