"""Whether compiled steps pay in a run: measured, and weighed against what compiling takes.

`local.compile = "auto"` is answered once, before a run's folder is made, and the answer stands in
its settings: whoever goes on with the run computes as it began.
"""

import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from nefl.client.training import count_steps
from nefl.engines.compiled import OPTIONS
from nefl.engines.devices import pick_device, wait_for
from nefl.engines.tuning import tuned_for
from nefl.nesting.sets import extract_all
from nefl.remembered import recall, remember
from nefl.running.assembly import Setting
from nefl.running.one_batch import one_batch_site
from nefl.server.stepping import remembering
from nefl.state import TrainTask
from nefl.wording import counted

WORTH_TRYING = 600.0
"""Seconds of training in all below which nothing is compiled: compiling takes minutes."""

STEPS = 5
"""Steps that are timed; the median counts."""


@dataclass(frozen=True)
class Measured:
    """What a training step of a submodel takes here.

    Attributes:
        eager: seconds of a step as torch computes it.
        compiled: seconds of a compiled step.
        compiling: seconds until the first compiled step was done.
    """

    eager: float
    compiled: float
    compiling: float


@dataclass(frozen=True)
class Choice:
    """Whether a run's steps are compiled.

    Attributes:
        compile: whether they are.
        reason: what was measured, in words.
    """

    compile: bool
    reason: str


def settled(setting: Setting) -> tuple[Setting, str]:
    """Return a setting that says whether steps are compiled; and why, if that was left open."""
    config = setting.config
    if config.local.compile != "auto":
        return setting, ""
    choice = choose(setting)
    config = replace(config, local=replace(config.local, compile=choice.compile))
    return replace(setting, config=config, plan=replace(setting.plan, config=config)), choice.reason


def choose(setting: Setting) -> Choice:
    """Weigh what compiled steps save in a run against what compiling them takes."""
    family, config = setting.family, setting.config
    steps = steps_to_come(setting)
    with tuned_for(config):
        eager = _median(_times(setting, len(family), compiled=False)[1:])
        most = steps * eager
        if most < WORTH_TRYING:
            return Choice(
                compile=False,
                reason=f"all steps together take at most {most:.0f} s of a core, and compiling is "
                f"tried from {WORTH_TRYING:.0f} s on",
            )
        ends = [_measured(setting, k) for k in {1, len(family)}]
    saved = steps * sum(m.eager - m.compiled for m in ends) / len(ends)
    workers = max(1, len(setting.workers()))
    spent = workers * len(family) * sum(m.compiling for m in ends) / len(ends)
    share = sum(m.compiled / m.eager for m in ends) / len(ends)
    return Choice(
        compile=saved > spent,
        reason=f"a compiled step takes {share:.2f} of an eager one, which saves {saved:.0f} s in "
        f"{counted(round(steps), 'step')}; compiling takes at most {spent:.0f} s",
    )


def steps_to_come(setting: Setting) -> float:
    """Return how many local steps a run has in all, as expected."""
    config = setting.config
    each = [count_steps(int(size), config.local) for size in setting.partition.sizes]
    return config.rounds * config.clients.per_round * sum(each) / len(each)


def _measured(setting: Setting, submodel: int) -> Measured:
    """Return what was measured on this machine before, or measure it."""
    config = setting.config
    where = config.engine.devices, config.engine.threads, torch.__config__.show()
    local = config.local
    how = local.batch_size, local.memory_format, local.optimizer, local.precision
    what = repr(
        (config.model, setting.family, setting.task.signature, submodel, how, where, OPTIONS)
    )
    known = recall("compiled-steps", what)
    if isinstance(known, dict) and known.keys() == {"eager", "compiled", "compiling"}:
        return Measured(**known)
    plain = _times(setting, submodel, compiled=False)
    quick = _times(setting, submodel, compiled=True)
    found = Measured(_median(plain[1:]), _median(quick[1:]), quick[0] - _median(quick[1:]))
    remember("compiled-steps", what, vars(found))
    return found


def _median(times: list[float]) -> float:
    return float(np.median(times))


def _times(setting: Setting, submodel: int, *, compiled: bool) -> list[float]:
    """Time steps of a submodel on a batch of the first examples; the first one makes it ready."""
    config = setting.config
    site = one_batch_site(setting, config.local.batch_size, compiled=compiled)
    state = remembering(setting.family.initial_state(0), setting.family, setting.plan.step)
    given = extract_all(state, setting.family, submodel, setting.plan.receives)
    found = []
    for _ in range(1 + STEPS):
        started = time.perf_counter()
        site.train(TrainTask(1, 0, submodel), given)
        wait_for(pick_device(config.engine.devices[0]))
        found.append(time.perf_counter() - started)
    return found
