"""Who takes part in a round, and which submodel each of them trains."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Protocol

import numpy as np

from nefl.config import ClientsConfig
from nefl.nesting.growing import unlock
from nefl.nesting.spec import Family
from nefl.nesting.tiers import tier_choices
from nefl.seeds import Purpose, generator_for
from nefl.server.devices import Fleet
from nefl.server.ledger import ages, ready
from nefl.state import ServerState, Tensors, TrainTask


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

    def returned(self) -> Collection[int]:
        """Return the clients that came, or came back, and were given no task since."""

    def failed(self) -> Collection[int]:
        """Return the clients of which an earlier round did not wait to hear that they failed.

        Each is returned once.
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
        levels: how many tiers clients fall into, if not as many as there are submodels.
        left_out: how many of them are below the smallest submodel and take no part; submodels are
            for those above it, the largest for all that remain.
        fewest: how many clients a round needs; where fewer are not passed over, some are asked who
            would be. A whole cohort, if left out.
    """

    clients: ClientsConfig
    submodels: int
    seed: int
    fleet: Fleet | None = None
    roster: Roster | None = None
    levels: int = 0
    left_out: int = 0
    fewest: int = 0


def tier_of(client: int, clients: int, submodels: int) -> int:
    """Return a client's tier, from 1; there are as many as submodels, of even size."""
    return client * submodels // clients + 1


def tier_name(client: int, plan: CohortPlan) -> str:
    """Return what a client's capability is called: its kind of device, or its tier."""
    known = Standing() if plan.roster is None else plan.roster.standing(client)
    if known.tier is None and plan.fleet is not None:
        return plan.fleet.device(client).name
    levels = plan.levels or plan.submodels
    return f"tier {known.tier or tier_of(client, plan.clients.count, levels)}"


def by_tier(plan: CohortPlan, **groups: Sequence[TrainTask]) -> dict[str, dict[str, int]]:
    """Return how many tasks of each group went to clients of each tier."""
    tiers: dict[str, dict[str, int]] = {}
    for group, tasks in groups.items():
        for task in tasks:
            tier = tiers.setdefault(tier_name(task.client, plan), dict.fromkeys(groups, 0))
            tier[group] += 1
    return dict(sorted(tiers.items()))


def sample_cohort(
    plan: CohortPlan,
    round_number: int,
    attempt: int = 0,
    ledger: Tensors = MappingProxyType({}),
) -> list[int]:
    """Draw the clients of a round; a repeated round draws others.

    Clients that can train none of the submodels in this round are passed over, where tiers tell,
    unless that would be all of them; so are those who keep failing, where the ledger tells.
    """
    rng = generator_for(plan.seed, Purpose.COHORT, round_number, attempt)
    pool = range(plan.clients.count) if plan.roster is None else plan.roster.present()
    if ledger:
        returned = () if plan.roster is None else plan.roster.returned()
        fewest = plan.fewest or plan.clients.per_round
        pool = ready(pool, ledger, round_number, fewest=fewest, returned=returned)
    asked, tells = plan.clients.asked, plan.left_out > 0 and plan.fleet is None
    if ledger and plan.clients.prefer == "unheard":
        # The smallest of exponential times: a draw without replacement, by these weights.
        order = np.argsort(rng.exponential(size=len(pool)) / ages(pool, ledger, round_number))
    elif tells:
        order = rng.permutation(len(pool))
    else:
        order = rng.choice(len(pool), min(asked, len(pool)), replace=False, shuffle=False)
    drawn = (pool[place] for place in order)
    if not tells:
        return sorted(islice(drawn, asked))
    everyone = list(drawn)
    able = [client for client in everyone if _takes_part(client, plan, round_number)]
    if not able:  # by chance nobody in this round: then those for whom it was a matter of chance
        able = [client for client in everyone if _choices(client, plan, round_number)]
    return sorted(able[:asked])


def assign_submodels(cohort: Sequence[int], plan: CohortPlan, round_number: int) -> list[TrainTask]:
    """Give each client the submodel it trains, the largest first.

    The order is that of the sums, so that they repeat bit for bit, and largest first keeps many
    workers busy to the end. A client whose device fits no submodel sits the round out.
    """
    if plan.clients.choice == "turns":
        able = {client: _choices(client, plan, round_number) for client in cohort}
        given = take_turns(able, generator_for(plan.seed, Purpose.SUBMODEL, round_number))
    else:
        drawn = {client: _submodel_for(client, plan, round_number) for client in cohort}
        if plan.left_out and not any(drawn.values()):  # of those asked for want of others
            able = {client: _choices(client, plan, round_number) for client in cohort}
            drawn = {client: min(choices, default=None) for client, choices in able.items()}
        given = {client: submodel for client, submodel in drawn.items() if submodel is not None}
    tasks = [TrainTask(round_number, client, submodel) for client, submodel in given.items()]
    return sorted(tasks, key=lambda task: (-task.submodel, task.client))


def _submodel_for(client: int, plan: CohortPlan, round_number: int) -> int | None:
    """Return the submodel that a client comes to by itself, if it can train any in this round."""
    levels, ceiling = _levels(client, plan, round_number)
    if not levels:
        return None
    level = levels[-1]
    if len(levels) > 1 and plan.clients.capability == "tiers":
        level = int(generator_for(plan.seed, Purpose.SUBMODEL, round_number, client).choice(levels))
    submodel = level - plan.left_out
    return min(submodel, ceiling) if submodel > 0 else None


def _takes_part(client: int, plan: CohortPlan, round_number: int) -> bool:
    if plan.clients.choice == "turns":
        return bool(_choices(client, plan, round_number))
    return _submodel_for(client, plan, round_number) is not None


def _choices(client: int, plan: CohortPlan, round_number: int) -> list[int]:
    """Return all submodels that a client can train in a round, in rising order."""
    levels, ceiling = _levels(client, plan, round_number)
    return sorted({min(k - plan.left_out, ceiling) for k in levels if k > plan.left_out})


def _levels(client: int, plan: CohortPlan, round_number: int) -> tuple[Sequence[int], int]:
    """Return the levels that a client may be of in a round, and the largest submodel it may have.

    Where a device decides there are those that fit, and it does the largest by itself.
    """
    known = Standing() if plan.roster is None else plan.roster.standing(client)
    ceiling = min(known.largest or plan.submodels, unlocked_in(plan, round_number))
    levels, tier = plan.levels or plan.submodels, known.tier
    if tier is None and plan.fleet is not None:
        fitting = plan.fleet.fitting(client, round_number)
        return [k + plan.left_out for k in fitting if k <= ceiling], ceiling
    if tier is None:
        tier = tier_of(client, plan.clients.count, levels)
    if plan.clients.capability == "tiers":
        return tier_choices(tier, levels, plan.clients.spread), ceiling
    return (tier,), ceiling


def unlocked_in(plan: CohortPlan, round_number: int) -> int:
    """Return the largest submodel that is trained in a round, where small ones come first."""
    if plan.clients.unlocks is None:
        return plan.submodels
    alone, everyone = plan.clients.unlocks
    share = (round_number - alone) / (everyone - alone)
    return 1 + math.floor((plan.submodels - 1) * min(1.0, max(0.0, share)))


def with_unlocked(state: ServerState, family: Family, plan: CohortPlan) -> ServerState:
    """Return a state ready for its next round: submodels new in it enter without a jump."""
    number = state.round_number + 1
    return unlock(state, family, unlocked_in(plan, number - 1), unlocked_in(plan, number))


def take_turns(able: Mapping[int, Sequence[int]], rng: np.random.Generator) -> dict[int, int]:
    """Give each client one of the submodels that it can train, as many different ones as can be.

    Args:
        able: what each client can train; one that can train nothing is left out.
        rng: decides among what is equally good.
    """
    from scipy.optimize import linear_sum_assignment  # half a second, for those who ask for turns

    waiting = [client for client, choices in able.items() if choices]
    submodels = sorted({k for choices in able.values() for k in choices})
    given: dict[int, int] = {}
    while waiting:  # a turn for everyone, then another for those who are left
        cost = rng.random((len(waiting), len(submodels)))
        for row, client in enumerate(waiting):
            cost[row, [k not in able[client] for k in submodels]] = len(waiting) + 1
        rows, columns = linear_sum_assignment(cost)
        for row, column in zip(rows, columns, strict=True):
            if submodels[column] in able[waiting[row]]:
                given[waiting[row]] = submodels[column]
        waiting = [client for client in waiting if client not in given]
    return given
