"""Who takes part in a round, and which submodel each of them trains."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from nefl.config import ClientsConfig
from nefl.nesting.tiers import tier_choices
from nefl.seeds import Purpose, generator_for
from nefl.server.devices import Fleet
from nefl.state import TrainTask


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a real client.

    Attributes:
        tier: its tier, if anybody has said.
        largest: the largest submodel it may train, if there is a limit.
    """

    tier: int | None = None
    largest: int | None = None


class Roster(Protocol):
    """Who is there just now, where clients are real and come and go."""

    def present(self) -> Sequence[int]:
        """Return the clients that can be given a task, in rising order, at least one.

        Raises:
            RunError: if too few are there and no more come.
        """

    def standing(self, client: int) -> Standing:
        """Return what is known of a client."""


@dataclass(frozen=True)
class CohortPlan:
    """What the choice of a cohort rests on.

    Attributes:
        clients: the population and what its members can do.
        submodels: how many submodels there are.
        seed: the run's seed.
        fleet: the devices, where capability is a matter of devices.
        roster: who is there, where clients are real; without one, everybody always is.
        levels: how many tiers clients fall into, if there are more than submodels; then the
            submodels are for the upper ones, and clients below take no part.
    """

    clients: ClientsConfig
    submodels: int
    seed: int
    fleet: Fleet | None = None
    roster: Roster | None = None
    levels: int = 0

    @property
    def left_out(self) -> int:
        """How many levels are below the smallest submodel."""
        return max(0, self.levels - self.submodels)


def tier_of(client: int, clients: int, submodels: int) -> int:
    """Return a client's tier, from 1; there are as many as submodels, of even size."""
    return client * submodels // clients + 1


def sample_cohort(plan: CohortPlan, round_number: int, attempt: int = 0) -> list[int]:
    """Draw the clients of a round; a repeated round draws others.

    Clients that can train none of the submodels in this round are passed over, where tiers tell.
    """
    rng = generator_for(plan.seed, Purpose.COHORT, round_number, attempt)
    pool = range(plan.clients.count) if plan.roster is None else plan.roster.present()
    if plan.left_out and plan.fleet is None:
        order = (pool[place] for place in rng.permutation(len(pool)))
        able = (client for client in order if _submodel_for(client, plan, round_number))
        return sorted(islice(able, plan.clients.per_round))
    size = min(plan.clients.per_round, len(pool))
    chosen = rng.choice(len(pool), size, replace=False, shuffle=False)
    return [pool[place] for place in np.sort(chosen)]


def assign_submodels(cohort: Sequence[int], plan: CohortPlan, round_number: int) -> list[TrainTask]:
    """Give each client the submodel it trains, the largest first.

    The order is that of the sums, so that they repeat bit for bit, and largest first keeps many
    workers busy to the end. A client whose device fits no submodel sits the round out.
    """
    tasks = []
    for client in cohort:
        submodel = _submodel_for(client, plan, round_number)
        if submodel is not None:
            tasks.append(TrainTask(round_number, client, submodel))
    return sorted(tasks, key=lambda task: (-task.submodel, task.client))


def _submodel_for(client: int, plan: CohortPlan, round_number: int) -> int | None:
    known = Standing() if plan.roster is None else plan.roster.standing(client)
    submodel = _wanted_submodel(client, known.tier, plan, round_number)
    if submodel is None or known.largest is None:
        return submodel
    return min(submodel, known.largest)


def _wanted_submodel(
    client: int, level: int | None, plan: CohortPlan, round_number: int
) -> int | None:
    levels = plan.submodels + plan.left_out
    if level is None:
        if plan.fleet is not None:
            return plan.fleet.largest_fitting(client, round_number)
        level = tier_of(client, plan.clients.count, levels)
    if plan.clients.capability == "tiers":
        choices = tier_choices(level, levels, plan.clients.spread)
        rng = generator_for(plan.seed, Purpose.SUBMODEL, round_number, client)
        level = int(rng.choice(choices))
    return level - plan.left_out if level > plan.left_out else None
