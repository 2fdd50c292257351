"""When a round closes, and which of its updates count.

More clients may be asked than a round wants, so that it need not wait for its slowest. Those who
are discarded then are no random sample: slow tiers, or large submodels on middling devices. So
every submodel has its share of the places, and the outer corners do not starve. A client that hangs
must not hold up the others for the sake of its share: places are kept for a time only.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nefl.config import RunConfig
from nefl.errors import ConfigError
from nefl.server.cohort import CohortPlan
from nefl.server.devices import RoundTimes
from nefl.state import ClientFailure, TrainTask


@dataclass(frozen=True, slots=True)
class ClosingRule:
    """When a round closes.

    Attributes:
        wanted: how many updates it wants.
        quorum: the share of them with which it counts.
        hold: how many times as long as it took to have enough updates places are kept for submodels
            that have not had their share.
        close_after: seconds after which it closes with a quorum; infinity if it waits.
    """

    wanted: int
    quorum: float
    hold: float = math.inf
    close_after: float = math.inf


def closing_rule(config: RunConfig) -> ClosingRule | None:
    """Return the rule by which rounds close; nothing where they wait for everybody."""
    clients = config.clients
    if not clients.closes_early:
        return None
    after = math.inf if clients.close_after is None else clients.close_after
    return ClosingRule(clients.per_round, config.server.quorum, clients.hold, after)


def check_clock(config: RunConfig) -> None:
    """Refuse rounds that close early where no clock tells who is late.

    Raises:
        ConfigError: naming the setting.
    """
    clients = config.clients
    if clients.closes_early and clients.capability != "devices":
        key = "over_select" if clients.over_select > 1 else "close_after"
        raise ConfigError(
            f"clients.{key}: who is late is a matter of time, and clients on this machine have "
            "none but that of simulated devices; set clients.capability to 'devices', or run on "
            "Flower"
        )


def quotas(asked: Mapping[int, int], wanted: int) -> dict[int, int]:
    """Share places out in proportion to who was asked, and in whole numbers.

    What is left over goes to the largest remainders, the largest submodel first among equals: the
    outer corners have the fewest holders.

    Args:
        asked: how many were asked of each submodel.
        wanted: how many places there are, at most as many as were asked.
    """
    total = sum(asked.values())
    places = {k: wanted * n // total for k, n in asked.items()}
    by_remainder = sorted(asked, key=lambda k: (wanted * asked[k] % total, k), reverse=True)
    for k in by_remainder[: wanted - sum(places.values())]:
        places[k] += 1
    return places


class Places:
    """The places of one round, taken by replies as they come; local to the round.

    A reply whose submodel has no place left waits: a place that its own submodel cannot fill any
    more is anybody's, first come, first served.

    Args:
        tasks: what was asked.
        rule: when the round closes.
    """

    def __init__(self, tasks: Sequence[TrainTask], rule: ClosingRule) -> None:
        self._pending = Counter(task.submodel for task in tasks)
        self._rule = rule
        self._wanted = min(rule.wanted, len(tasks))
        self._needed = max(1, math.ceil(rule.quorum * self._wanted))
        self._kept = quotas(self._pending, self._wanted) if tasks else {}
        self._free = 0
        self._counted = 0
        self._enough = math.inf
        self._waiting: list[TrainTask] = []

    def take(self, task: TrainTask, seconds: float) -> list[TrainTask]:
        """Take note of a reply; return the tasks that count from now on, this one or none.

        Args:
            task: the task that it answers.
            seconds: when it came, after the start of the round.
        """
        self._pending[task.submodel] -= 1
        self._waiting.append(task)
        if self._there >= self._wanted:
            self._enough = min(self._enough, seconds)
        return self._seat()

    def lose(self, task: TrainTask) -> list[TrainTask]:
        """Take note that a task brings no update; return the tasks that count because of it."""
        submodel = task.submodel
        self._pending[submodel] -= 1
        if self._kept.get(submodel, 0) > self._pending[submodel]:
            self._kept[submodel] -= 1
            self._free += 1
        return self._seat()

    @property
    def closes(self) -> float:
        """When the round closes, in seconds after its start, if nothing comes until then."""
        if self._counted == self._wanted:
            return 0.0
        soft = self._rule.close_after if self._there >= self._needed else math.inf
        return min(soft, self._rule.hold * self._enough)

    @property
    def _there(self) -> int:
        return self._counted + len(self._waiting)

    def close(self) -> list[TrainTask]:
        """Give the places that are left to those who wait, and return these."""
        self._free += sum(self._kept.values())
        self._kept = {}
        return self._seat()

    def _seat(self) -> list[TrainTask]:
        """Give places to those who wait, in the order in which they came."""
        seated = [task for task in self._waiting if self._has_place(task.submodel)]
        self._waiting = [task for task in self._waiting if task not in seated]
        self._counted += len(seated)
        return seated

    def _has_place(self, submodel: int) -> bool:
        """Whether a submodel has a place, which is taken with that."""
        if self._kept.get(submodel, 0):
            self._kept[submodel] -= 1
        elif self._free:
            self._free -= 1
        else:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Closed:
    """A round that closed by the clocks of simulated devices.

    Attributes:
        counted: the tasks that were in time, in their order.
        left: what became of the others.
        seconds: when it closed.
    """

    counted: tuple[TrainTask, ...]
    left: tuple[ClientFailure, ...]
    seconds: float


def simulated_closing(
    config: RunConfig, plan: CohortPlan, tasks: Sequence[TrainTask]
) -> Closed | None:
    """Return how a round closes by the clocks of simulated devices, if these decide."""
    rule = closing_rule(config)
    if rule is None or plan.fleet is None or plan.roster is not None:
        return None
    return close_by_clock(tasks, plan.fleet.task_seconds(tasks), rule)


def simulated_times(
    config: RunConfig,
    plan: CohortPlan,
    cohort: Sequence[int],
    tasks: Sequence[TrainTask],
    round_number: int,
) -> RoundTimes | None:
    """Return how long a round and its alternatives take by the same rule, on simulated devices."""
    rule, fleet = closing_rule(config), plan.fleet
    if fleet is None:
        return None
    if rule is None or plan.roster is not None:
        return fleet.round_times(cohort, tasks, round_number)

    def closes(some: Sequence[TrainTask], seconds: Sequence[float]) -> float:
        return close_by_clock(some, seconds, rule).seconds

    return fleet.round_times(cohort, tasks, round_number, closes)


def close_by_clock(
    tasks: Sequence[TrainTask], seconds: Sequence[float], rule: ClosingRule
) -> Closed:
    """Close a round whose replies come at known times.

    Args:
        tasks: what was asked.
        seconds: when each reply is there; infinity if never.
        rule: when the round closes.
    """
    places = Places(tasks, rule)
    counted: list[TrainTask] = []
    now = 0.0
    for at, task in sorted(zip(seconds, tasks, strict=True), key=lambda pair: pair[0]):
        if at > places.closes:
            now = max(now, places.closes)
            break
        if math.isinf(at):  # without a quorum nothing is left to wait for
            now = max(now, rule.close_after)
            break
        now = at
        counted += places.take(task, now)
        if now >= places.closes:
            break
    counted += places.close()
    in_time = set(counted)
    left = tuple(
        _left(task, at, now) for at, task in zip(seconds, tasks, strict=True) if task not in in_time
    )
    return Closed(tuple(task for task in tasks if task in in_time), left, now)


def _left(task: TrainTask, at: float, now: float) -> ClientFailure:
    who = f"client {task.client}"
    if math.isinf(at):
        return ClientFailure(task, f"{who}: its device dropped out")
    reason = f"{who}: the round closed after {now:.3g} s, its update takes {at:.3g} s"
    if at <= now:
        reason = f"{who}: others had taken the places for submodel {task.submodel}"
    return ClientFailure(task, reason, discarded=True)
