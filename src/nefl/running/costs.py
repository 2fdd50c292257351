"""What a run's submodels cost, with its batches, its optimiser and what its method adds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nefl.config import LocalConfig, ModelConfig, RunConfig
from nefl.methods import macs_in_round, method_of, method_reference, priced
from nefl.nesting.inside import alone
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.profile import profile_family
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family
from nefl.references import own_model
from nefl.running.counted import counted_once

OPTIMISER_COPIES = {"sgd": 0, "adam": 2, "adamw": 2}
"""Numbers that an optimiser keeps for each weight; momentum is one more."""


@dataclass(frozen=True, eq=False)
class Work:
    """What the training of a run's rounds takes: members within may differ from round to round.

    Attributes:
        config: the run.
        family: its family.
        alone: what each submodel costs by itself.
        sizes: how many examples each client has.
    """

    config: RunConfig
    family: Family
    alone: Sequence[SubmodelProfile]
    sizes: npt.NDArray[np.int64]

    def of(self, round_number: int, clients: Mapping[int, Sequence[int]]) -> float:
        """Return the MACs of all local steps of a round.

        Args:
            round_number: the round, from 1.
            clients: who trains each submodel, by its number.
        """
        objective = method_of(self.config.model).objective
        return self.config.local.epochs * sum(
            macs_in_round(self.alone, self.family, objective, submodel, round_number)
            * int(self.sizes[list(who)].sum())
            for submodel, who in clients.items()
        )


def run_profiles(
    config: RunConfig, family: Family, signature: Signature
) -> tuple[SubmodelProfile, ...]:
    """Return what a run's submodels cost, with its batches, its optimiser and its method's sets.

    Raises:
        ConfigError: if the model cannot take inputs of that shape.
    """
    objective = method_of(config.model).objective
    copies = kept_copies(config.model, config.local)
    # What the user's own code builds may have no hash to be remembered by.
    own = own_model(config.model) or method_reference(config.model.method) is not None
    count = profile_family if own else counted_once
    counted = count(alone(family), signature, config.local.batch_size, copies)
    return priced(counted, family, objective, config.rounds, copies, config.wire)


def kept_copies(model: ModelConfig, local: LocalConfig) -> int:
    """Return how many numbers training keeps for each weight, besides its gradient."""
    objective = method_of(model).objective
    sets = (*objective.keeps, *objective.receives, *objective.sends)
    return optimiser_copies(local) + len(sets)


def optimiser_copies(local: LocalConfig) -> int:
    """Return how many numbers the optimiser keeps for each weight."""
    return OPTIMISER_COPIES[local.optimizer] + (local.optimizer == "sgd" and local.momentum > 0)
