"""What a method makes of the price of a submodel: members within cost work, memory and traffic."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from numbers import Real

from nefl.client.objective import Objective
from nefl.config import WireConfig
from nefl.errors import ConfigError
from nefl.nesting.inside import member_layout
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.profile import GRADIENTS_TOO
from nefl.nesting.spec import Family
from nefl.own_code import own_code, place_of
from nefl.wire.layouts import travel_bytes


def priced(
    profiles: Sequence[SubmodelProfile],
    family: Family,
    objective: Objective,
    rounds: int,
    optimiser_copies: int = 0,
    wire: WireConfig | None = None,
) -> tuple[SubmodelProfile, ...]:
    """Return what submodels cost when a method trains them.

    Args:
        profiles: what each costs by itself.
        family: the family, with the members that are trained within.
        objective: what clients follow.
        rounds: rounds of the run; where they differ in work, its mean is taken.
        optimiser_copies: numbers that are kept for each weight, besides itself and its gradient.
        wire: how weights travel; as they are, if left out.
    """
    numbers = range(1, len(family) + 1)
    forms = wire or WireConfig()
    down = [travel_bytes(family, k, objective.receives, forms.down) for k in numbers]
    up = [travel_bytes(family, k, objective.sends, forms.up) for k in numbers]
    return tuple(
        replace(
            profile,
            train_macs=round(_macs(profiles, family, objective, profile.index, rounds)),
            train_memory_bytes=profile.train_memory_bytes
            + _more_memory(profiles, family, objective, profile.index, optimiser_copies),
            payload_bytes=(sent + back) // 2,
            down_bytes=sent,
            up_bytes=back,
        )
        for profile, sent, back in zip(profiles, down, up, strict=True)
    )


def macs_in_round(
    profiles: Sequence[SubmodelProfile],
    family: Family,
    objective: Objective,
    submodel: int,
    round_number: int,
) -> float:
    """Return the MACs of training on an example in a round, members within included.

    Args:
        profiles: what each submodel costs by itself.
        family: the family, with the members that are trained within.
        objective: what clients follow.
        submodel: the client's own.
        round_number: the round, from 1.
    """
    members = family.members_within(submodel)
    if not members:
        return profiles[submodel - 1].train_macs
    work = work_of(objective, members, submodel, round_number)
    return sum(often * profiles[number - 1].train_macs for number, often in work.items())


def trains_members(objective: Objective, family: Family, rounds: int) -> bool:
    """Whether a step of a run ever trains one of the members that are named for it."""
    numbers = range(1, len(family) + 1)
    return any(
        work_of(objective, members, submodel, number).get(member, 0) > 0
        for number in range(rounds, 0, -1)  # as a rule the last round tells
        for submodel in numbers
        for members in [family.members_within(submodel)]
        for member in members
    )


def work_of(
    objective: Objective, members: Sequence[int], submodel: int, round_number: int
) -> Mapping[int, float]:
    """Return how often a step runs each member in a round, as an objective says.

    Raises:
        ConfigError: if it says nothing of the kind.
        OwnCodeError: if it fails.
    """
    who = f"work of {place_of(type(objective))}"
    with own_code(who):
        work = objective.work(members, submodel, round_number)
    known = (submodel, *members)
    by_number = isinstance(work, Mapping)
    often = [work.get(number, 0.0) for number in known] if by_number else []
    fine = all(isinstance(value, Real) and isfinite(value) and value >= 0 for value in often)
    if not by_number or work.keys() - set(known) or not fine or not any(often):
        raise ConfigError(
            f"{who}: returned {work} for submodel {submodel} in round {round_number}; give how "
            f"often a step runs each of {', '.join(map(str, known))}, as numbers from 0 by number"
        )
    return work


def together_of(
    objective: Objective, members: Sequence[int], submodel: int
) -> list[tuple[int, ...]]:
    """Return whom a step may have in memory together, as an objective says: all that can be.

    Raises:
        ConfigError: if it says nothing of the kind.
        OwnCodeError: if it fails.
    """
    who = f"at_once of {place_of(type(objective))}"
    with own_code(who):
        found = objective.at_once(members, submodel)
    known = (submodel, *members)
    listed = isinstance(found, Sequence) and all(isinstance(each, Sequence) for each in found)
    if not listed or not found or not all(each and set(each) <= set(known) for each in found):
        raise ConfigError(
            f"{who}: returned {found} for submodel {submodel}; give a tuple of numbers out of "
            f"{', '.join(map(str, known))} for each kind of step"
        )
    return [tuple(each) for each in found]


def _macs(
    profiles: Sequence[SubmodelProfile],
    family: Family,
    objective: Objective,
    submodel: int,
    rounds: int,
) -> float:
    """Return what an example takes on average over the rounds."""
    if not family.members_within(submodel):
        return profiles[submodel - 1].train_macs
    numbers = range(1, rounds + 1)
    each = [macs_in_round(profiles, family, objective, submodel, number) for number in numbers]
    return sum(each) / rounds


def _more_memory(
    profiles: Sequence[SubmodelProfile],
    family: Family,
    objective: Objective,
    submodel: int,
    copies: int,
) -> int:
    """Return the bytes that members within take: activations, and what they have for themselves."""
    members = family.members_within(submodel)
    if not members:
        return 0
    activations = max(
        sum(profiles[number - 1].activation_bytes for number in together)
        for together in together_of(objective, members, submodel)
    )
    own = sum(info.nbytes for info in member_layout(family, submodel).values())
    return activations - profiles[submodel - 1].activation_bytes + (GRADIENTS_TOO + copies) * own
