"""Devices of unequal means, whose conditions change from round to round.

A simulated device has memory, speed and bandwidth. Each round a client takes the largest submodel
that fits them, and the same arithmetic tells how long the round takes: with nested submodels, with
the full model for everyone, and with the full model for those that can hold it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from nefl.config import ClientsConfig, DeviceConfig
from nefl.nesting.price import SubmodelProfile
from nefl.seeds import Purpose, generator_for
from nefl.state import TrainTask

Numbers = npt.NDArray[np.float64]
Amount = TypeVar("Amount", float, Numbers)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a client has in one round: bytes, MACs per second, bytes per second, and its luck."""

    memory: float
    macs_per_second: float
    bandwidth: float
    drops_out: bool = False


def round_seconds(macs: Amount, payload_bytes: Amount, conditions: Conditions) -> Amount:
    """Return the time to fetch, train and return a submodel: of one, or of an array of them.

    Args:
        macs: of all its local steps in a round.
        payload_bytes: what is sent to a client, and again what it sends back.
        conditions: what the client has.
    """
    return macs / conditions.macs_per_second + 2 * payload_bytes / conditions.bandwidth


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Simulated seconds of one round, and what the alternatives would take.

    Attributes:
        nested: until the round closes; as a rule, when the last client with its nested submodel is
            done.
        full: the same if all of them trained the full model.
        strong_only: the same if only those that fit the full model trained it.
        strong_clients: how many those are.
        sat_out: clients that fit no submodel at all.
    """

    nested: float
    full: float
    strong_only: float
    strong_clients: int
    sat_out: int


Closes = Callable[[Sequence[TrainTask], Sequence[float]], float]
"""When a round ends whose tasks are answered at given seconds."""


def _when_all_are_done(_tasks: Sequence[TrainTask], seconds: Sequence[float]) -> float:
    return max(filter(math.isfinite, seconds), default=0.0)


@dataclass(frozen=True, eq=False)
class Fleet:
    """The devices of a population.

    Attributes:
        clients: the kinds of device and how they fluctuate.
        profiles: the cost of each submodel, smallest first.
        epochs: local epochs of a round.
        examples: how many examples each client has.
        seed: the run's seed.
        full_alone: the cost of the full model where nothing is trained inside it, as in the
            alternatives; that of `profiles`, if left out.
    """

    clients: ClientsConfig
    profiles: Sequence[SubmodelProfile]
    epochs: int
    examples: np.ndarray[tuple[int], np.dtype[np.int64]]
    seed: int
    full_alone: SubmodelProfile | None = None

    def device(self, client: int) -> DeviceConfig:
        """Return the kind of device a client has, the same in every round."""
        kinds = self.clients.devices
        shares = np.array([kind.share for kind in kinds])
        rng = generator_for(self.seed, Purpose.DEVICES, client)
        return kinds[int(rng.choice(len(kinds), p=shares / shares.sum()))]

    def conditions(self, client: int, round_number: int) -> Conditions:
        """Return what a client has in a round: its device, more or less."""
        device = self.device(client)
        rng = generator_for(self.seed, Purpose.CONDITIONS, round_number, client)
        memory, speed, bandwidth = np.exp(rng.normal(0, self.clients.fluctuation, 3))
        return Conditions(
            device.memory * memory,
            device.macs_per_second * speed,
            device.bandwidth * bandwidth,
            drops_out=bool(device.fails and rng.random() < device.fails),
        )

    def seconds(self, client: int, submodel: int, conditions: Conditions) -> float:
        """Return the time to fetch, train and return a submodel."""
        profile = self.profiles[submodel - 1]
        macs = profile.train_macs * int(self.examples[client]) * self.epochs
        return round_seconds(macs, profile.payload_bytes, conditions)

    def fits(self, client: int, submodel: int, conditions: Conditions) -> bool:
        """Whether a client can hold a submodel in memory and be done before the deadline."""
        deadline = self.clients.deadline
        return self.profiles[submodel - 1].train_memory_bytes <= conditions.memory and (
            deadline is None or self.seconds(client, submodel, conditions) <= deadline
        )

    def fitting(self, client: int, round_number: int) -> list[int]:
        """Return the submodels that fit a client in a round, in rising order.

        They need not be all up to the largest: a deep, narrow one may need more than a wide one.
        """
        conditions = self.conditions(client, round_number)
        return [k for k in range(1, len(self.profiles) + 1) if self.fits(client, k, conditions)]

    def task_seconds(self, tasks: Sequence[TrainTask]) -> list[float]:
        """Return how long after the start of its round each reply is there; infinity if never."""
        found = []
        for task in tasks:
            conditions = self.conditions(task.client, task.round_number)
            seconds = self.seconds(task.client, task.submodel, conditions)
            found.append(math.inf if conditions.drops_out else seconds)
        return found

    def round_times(
        self,
        cohort: Sequence[int],
        tasks: Sequence[TrainTask],
        round_number: int,
        closes: Closes = _when_all_are_done,
    ) -> RoundTimes:
        """Return how long a round takes, and what the alternatives would take.

        Args:
            cohort: who was asked.
            tasks: what they were given.
            round_number: the round.
            closes: tells when a round ends, from its tasks and when their replies come.
        """
        alone = self._with_full_alone()
        full = [TrainTask(round_number, client, len(self.profiles)) for client in cohort]
        strong = [
            task
            for task in full
            if alone.fits(task.client, task.submodel, self.conditions(task.client, round_number))
        ]
        nested, for_all, strong_only = (
            closes(some, fleet.task_seconds(some))
            for fleet, some in ((self, tasks), (alone, full), (alone, strong))
        )
        return RoundTimes(nested, for_all, strong_only, len(strong), len(cohort) - len(tasks))

    def _with_full_alone(self) -> "Fleet":
        """Return the fleet for which the full model costs what it does alone."""
        if self.full_alone is None:
            return self
        return replace(self, profiles=(*self.profiles[:-1], self.full_alone), full_alone=None)
