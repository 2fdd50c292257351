"""The learning rate over the rounds of a run."""

import math
from collections.abc import Iterable

from nefl.config import ScheduleConfig


def learning_rate(
    schedule: ScheduleConfig, base: float, rounds: int, done: float, steps_per_round: int
) -> float:
    """Return the learning rate at a point of the run.

    Args:
        schedule: how the rate changes.
        base: the rate before any schedule.
        rounds: rounds of the whole run.
        done: rounds done at this point; a fraction within a round.
        steps_per_round: local steps in a round of this client, which turn warm-up steps into
            rounds.
    """
    warmup = min(schedule.warmup_steps / steps_per_round, rounds)
    if done < warmup:
        # The first step already moves: steps count from 1 here.
        return base * (done + 1 / steps_per_round) / warmup
    if schedule.name == "step":
        # A client keeps one rate through a round.
        passed = sum(math.floor(done) >= share * rounds for share in schedule.milestones)
        return base * float(schedule.factor**passed)
    if schedule.name == "cosine":
        progress = (done - warmup) / max(rounds - warmup, 1e-9)
        return base * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return base


def first_difference(
    schedule: ScheduleConfig, before: int, after: int, done: int, steps: Iterable[int]
) -> int | None:
    """Return the first round done in which another number of rounds means another rate.

    Args:
        schedule: how the rate changes.
        before: rounds of the whole run as it was trained so far.
        after: rounds that it shall have.
        done: rounds done.
        steps: local steps in a round, of each client.
    """
    for number in range(done):
        for each in steps:
            for step in {0, each - 1}:  # rates move one way within a round
                at = number + step / each
                rates = (learning_rate(schedule, 1.0, n, at, each) for n in (before, after))
                if len(set(rates)) > 1:
                    return number + 1
    return None
