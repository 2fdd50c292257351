"""How long local steps take on this machine, measured within a few seconds."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nefl.engines.devices import pick_device, wait_for
from nefl.engines.tuning import tuned_for
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.sets import extract_all
from nefl.running.assembly import Setting
from nefl.running.one_batch import one_batch_site
from nefl.server.stepping import remembering
from nefl.state import ServerState, TrainTask

SECONDS = 5.0
"""Time to spend on measuring; what is left over then is extrapolated by MACs."""

STEP_MACS = 1e10
"""Work of a timed step: about a second on a slow core; larger batches are cut down to it."""

MAX_BYTES = 2 * 2**30
"""Memory that a measurement may take; larger batches are cut down to it."""

LARGE_SIDE = 64
"""Pixels from which one example is enough for batch norms: smaller images end as single pixels,
and of a single value there are no statistics."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """What one local step of a submodel alone takes, with nothing trained inside it.

    Attributes:
        seconds: for a full batch.
        measured: whether it was measured, or follows from another submodel by their MACs.
    """

    seconds: float
    measured: bool


def measure_steps(
    setting: Setting, profiles: Sequence[SubmodelProfile], seconds: float = SECONDS
) -> dict[int, StepTime]:
    """Measure local steps of the submodels on the first examples, the cheapest first.

    Args:
        setting: the run, without members within: steps differ in which of them they train.
        profiles: what its submodels cost alone, for its batch size.
        seconds: time to spend at most, but for the first measurement.

    Returns:
        The time of a step for each submodel, by its number.
    """
    began = time.monotonic()
    measured: dict[int, float] = {}
    rate = 0.0  # seconds a MAC, of the largest submodel that was measured
    state = _first_state(setting)
    with tuned_for(setting.config):
        for profile in sorted(profiles, key=lambda profile: profile.train_macs):
            batch = _batch(profile, setting)
            # Two steps: one to warm up, one to time. The first submodel has no forecast.
            forecast = 2 * rate * batch * profile.train_macs
            if measured and time.monotonic() - began + forecast > seconds:
                break
            taken = _time_step(setting, state, profile.index, batch) / batch
            measured[profile.index] = taken * setting.config.local.batch_size
            rate = taken / profile.train_macs
    return _complete(profiles, measured, rate * setting.config.local.batch_size)


def _batch(profile: SubmodelProfile, setting: Setting) -> int:
    """Return how many examples a timed step has: a full batch, unless that is too much work."""
    full = setting.config.local.batch_size
    by_work = int(STEP_MACS / profile.train_macs)
    by_memory = int(MAX_BYTES / (profile.train_memory_bytes / full))
    sides = setting.task.signature.input_shape[1:]
    fewest = 1 if sides and min(sides) >= LARGE_SIDE else 2
    return max(fewest, min(full, by_work, by_memory))


def _first_state(setting: Setting) -> ServerState:
    """Return fresh weights and a fresh memory of the server's step; no file is read for them."""
    family = setting.family
    return remembering(family.initial_state(0), family, setting.plan.step)


def _time_step(setting: Setting, state: ServerState, submodel: int, batch: int) -> float:
    site = one_batch_site(setting, batch)
    task = TrainTask(1, 0, submodel)
    given = extract_all(state, setting.family, submodel, setting.plan.receives)
    site.train(task, given)  # builds the module, and warms up
    started = time.perf_counter()
    update = site.train(task, given)
    wait_for(pick_device(setting.config.engine.devices[0]))
    del update
    return time.perf_counter() - started


def _complete(
    profiles: Sequence[SubmodelProfile], measured: Mapping[int, float], rate: float
) -> dict[int, StepTime]:
    return {
        profile.index: StepTime(measured[profile.index], measured=True)
        if profile.index in measured
        else StepTime(rate * profile.train_macs, measured=False)
        for profile in profiles
    }
