"""What a node may train: its tier and its limit, from what is known of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nefl.config import RunConfig
from nefl.engines.flower.capability import Capability, largest_in_memory
from nefl.engines.flower.server.registry import NodeEntry
from nefl.errors import UpdateError
from nefl.nesting.price import SubmodelProfile
from nefl.server.cohort import Standing
from nefl.server.devices import Conditions, round_seconds


@dataclass(frozen=True)
class Terms:
    """What the standing of a node is worked out from.

    Attributes:
        config: the run.
        submodels: how many submodels there are.
        profiles: what each of them costs, smallest first; empty if unknown.
        examples: how many examples each client has; empty if unknown.
        run: what a node needs to time the submodels.
        left_out: tiers below that of the smallest submodel, whose clients train nothing; above 0
            where only those take part who can train one of them.
        levels: how many tiers there are, if not as many as submodels.
        alone: what each submodel costs without members within, as nodes time it; as `profiles`, if
            empty.
    """

    config: RunConfig
    submodels: int
    profiles: Sequence[SubmodelProfile] = ()
    examples: Sequence[int] = ()
    run: Mapping[str, Any] | None = None
    left_out: int = 0
    levels: int = 0
    alone: Sequence[SubmodelProfile] = ()


def work_out_standing(
    client: int, entry: NodeEntry, capability: Capability, terms: Terms
) -> Standing:
    """Return a client's tier and limit: the operator's word first, the node's own after it.

    Raises:
        UpdateError: if no submodel fits the node.
    """
    largest = entry.largest or terms.submodels
    fitting = _largest_fitting(client, entry, capability, terms)
    if fitting is not None:
        if not fitting:
            raise UpdateError("no submodel fits its memory and speed")
        largest = min(largest, fitting)
    highest = largest + terms.left_out
    if largest == terms.submodels:
        highest = max(highest, terms.levels)
    tier = entry.tier
    if tier is None and capability.tier is not None:
        tier = max(capability.tier, 1)
    if tier is None and fitting is not None:
        tier = highest
    return Standing(tier if tier is None else min(tier, highest), largest)


def _largest_fitting(
    client: int, entry: NodeEntry, capability: Capability, terms: Terms
) -> int | None:
    """Return the largest submodel that fits a device profile, or nothing if there is no profile."""
    measured = terms.config.engine.flower.measure
    memory = entry.memory or (capability.memory if measured else None)
    speed, steps = entry.macs_per_second, capability.step_seconds if measured else ()
    if not terms.profiles or (memory is None and speed is None and not steps):
        return None
    needs = [profile.train_memory_bytes for profile in terms.profiles]
    fitting = largest_in_memory(None if memory is None else int(memory), needs)
    if client < len(terms.examples):
        seconds = [
            _round_seconds(k, int(terms.examples[client]), entry, steps, terms)
            for k in range(fitting)
        ]
        limit = terms.config.clients.deadline or terms.config.engine.flower.deadline
        fitting = max((k for k, s in enumerate(seconds, start=1) if s <= limit), default=0)
    return fitting


def _round_seconds(
    place: int, examples: int, entry: NodeEntry, step_seconds: Sequence[float], terms: Terms
) -> float:
    """Return how long a round takes with a submodel; what is not known takes no time."""
    local, profile = terms.config.local, terms.profiles[place]
    speed = entry.macs_per_second or math.inf
    known = Conditions(math.inf, speed, entry.bandwidth or math.inf)
    macs = float(profile.train_macs * examples * local.epochs)
    seconds = round_seconds(macs, float(profile.payload_bytes), known)
    if entry.macs_per_second is None and step_seconds:
        if place >= len(step_seconds):
            return math.inf  # too slow to be timed
        timed = (terms.alone or terms.profiles)[place]
        step = step_seconds[place] * profile.train_macs / timed.train_macs
        seconds += step * local.epochs * math.ceil(examples / local.batch_size)
    return seconds
