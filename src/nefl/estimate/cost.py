"""What a run costs: work, memory, traffic and, once steps were timed, hours."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nefl.config import RunConfig
from nefl.engines.devices import place_workers
from nefl.estimate.timing import StepTime
from nefl.nesting.coverage import min_coverage, uncovered
from nefl.nesting.inside import say_within
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.profile import PASSES
from nefl.nesting.sets import memory_layout
from nefl.nesting.spec import Family
from nefl.rounds import Plan
from nefl.running.assembly import Setting
from nefl.running.costs import Work
from nefl.server.aggregate import GROUP
from nefl.server.closing import simulated_closing
from nefl.server.cohort import assign_submodels, sample_cohort
from nefl.server.evaluate import needs_measuring
from nefl.state import TrainTask
from nefl.wire.layouts import travel_bytes

SAMPLED_ROUNDS = 200
"""Rounds of a run that are drawn to see who trains what, evenly from first to last; those between
are taken to be alike."""


@dataclass(frozen=True)
class SubmodelCost:
    """What one submodel costs in a run.

    Attributes:
        profile: what it costs by itself.
        share: how often it is trained, out of all tasks.
        step_seconds: time of one local step on this machine, if it is known; the mean where steps
            differ in the members that they train within.
        measured: whether that time was measured or follows from another submodel's.
    """

    profile: SubmodelProfile
    share: float
    step_seconds: float | None = None
    measured: bool = False


@dataclass(frozen=True)
class RunCost:
    """What a run costs.

    Attributes:
        config: the run.
        family: where its submodels come from.
        submodels: its submodels, smallest first.
        tasks: clients that train in a round, on average.
        examples: the fewest, mean and most training examples of a client.
        min_coverage: the fewest submodels that hold one shared element.
        client_memory: bytes that training takes on a client with the largest submodel.
        server_memory: bytes of weights that the server holds while a round is averaged.
        memory_here: bytes that all of it takes on this machine, besides code and data.
        round_bytes: bytes of weights sent in a round on average, down and up together.
        total_bytes: the same for all rounds.
        total_macs: multiply-accumulates of all local training.
        workers: worker processes on this machine; 0 means to train in one.
        seconds: estimated time on this machine, if it was measured.
        notes: what is not as it should be, though nothing forbids to start.
        tokens: tokens of an example; 0 where examples have none.
        within: which members are trained within which submodels, in words; empty where none are.
    """

    config: RunConfig
    family: str
    submodels: tuple[SubmodelCost, ...]
    tasks: float
    examples: tuple[int, float, int]
    min_coverage: int
    client_memory: int
    server_memory: int
    memory_here: int
    round_bytes: float
    total_bytes: float
    total_macs: float
    workers: int
    seconds: float | None
    notes: tuple[str, ...]
    tokens: int = 0
    within: str = ""


def cost_of(
    setting: Setting,
    profiles: Sequence[SubmodelProfile],
    notes: Sequence[str] = (),
    step_times: Mapping[int, StepTime] | None = None,
) -> RunCost:
    """Cost out a run that was checked.

    Args:
        setting: the run.
        profiles: what its submodels cost, for its batch size and optimiser.
        notes: what was found when it was checked.
        step_times: what local steps of its submodels alone take here, by number; without them the
            time stays unknown.
    """
    config, family = setting.config, setting.family
    asked = _drawn_rounds(setting)
    rounds = [_in_time(setting, tasks) for tasks in asked]
    sizes = setting.partition.sizes
    counts = Counter(task.submodel for tasks in rounds for task in tasks)
    drawn = max(1, sum(counts.values()))
    scale = config.rounds / len(rounds)
    down = sum(profiles[task.submodel - 1].down_bytes for tasks in asked for task in tasks)
    up = sum(profiles[task.submodel - 1].up_bytes for tasks in rounds for task in tasks)
    sent = scale * (down + up)
    work = setting.work()
    macs = scale * sum(_macs(work, tasks) for tasks in rounds)
    workers = len(place_workers(config.engine, config.clients.per_round))
    client_memory = max(profile.train_memory_bytes for profile in profiles)
    server_memory = _server_memory(setting.plan)
    slot = max(travel_bytes(family, k, setting.plan.sends) for k in range(1, len(family) + 1))
    copies = 2 * workers * slot + _state_bytes(family) if workers else 0
    memory_here = server_memory + copies + max(1, workers) * client_memory
    times = step_times or {}
    steps = _training_steps(setting, profiles, times)
    return RunCost(
        config=config,
        family=family.source,
        submodels=tuple(
            SubmodelCost(
                profile,
                counts[profile.index] / drawn,
                steps.get(profile.index),
                profile.index in times and times[profile.index].measured,
            )
            for profile in profiles
        ),
        tasks=sum(counts.values()) / len(rounds),
        examples=(int(sizes.min()), float(sizes.mean()), int(sizes.max())),
        min_coverage=min_coverage(family),
        client_memory=client_memory,
        server_memory=server_memory,
        memory_here=memory_here,
        round_bytes=sent / config.rounds,
        total_bytes=sent,
        total_macs=macs,
        workers=workers,
        seconds=_seconds(setting, rounds, times, steps, max(1, workers)) if times else None,
        notes=(*notes, *_coverage_notes(setting, counts), *_memory_notes(memory_here)),
        tokens=setting.task.signature.numel if setting.task.signature.tokens else 0,
        within=say_within(family),
    )


def _macs(work: Work, tasks: Sequence[TrainTask]) -> float:
    """Return the MACs of a round's tasks, if there are any."""
    clients: dict[int, list[int]] = {}
    for task in tasks:
        clients.setdefault(task.submodel, []).append(task.client)
    return work.of(tasks[0].round_number, clients) if tasks else 0.0


def _drawn_rounds(setting: Setting) -> list[list[TrainTask]]:
    plan = setting.plan.cohort
    return [
        assign_submodels(sample_cohort(plan, number), plan, number)
        for number in drawn_numbers(setting.config.rounds)
    ]


def drawn_numbers(rounds: int) -> list[int]:
    """Return the rounds that are drawn: all, or the middles of equal parts of the run."""
    parts = min(rounds, SAMPLED_ROUNDS)
    return [1 + (2 * part + 1) * rounds // (2 * parts) for part in range(parts)]


def _in_time(setting: Setting, tasks: list[TrainTask]) -> list[TrainTask]:
    """Return the tasks of a round that are trained: those who come too late are not simulated."""
    closed = simulated_closing(setting.config, setting.plan.cohort, tasks)
    return tasks if closed is None else list(closed.counted)


def _state_bytes(family: Family) -> int:
    own = (
        family.layout(k)[name].nbytes
        for k in range(1, len(family) + 1)
        for name in family.own_names(k)
    )
    return sum(info.nbytes for info in family.global_layout.values()) + sum(own)


def _server_memory(plan: Plan) -> int:
    """Return the bytes of the old weights, the sums and the new weights, and of a step's memory.

    Where the way down is not float32, the weights as clients have them come beside the old ones.
    """
    # Up to a group the sums become the new weights; beyond it there are float64 totals too.
    copies = 2 if plan.config.clients.per_round <= GROUP else 5
    keeps = () if plan.step is None else plan.step.keeps
    memory = sum(info.nbytes for info in memory_layout(plan.family, keeps).values())
    received = _state_bytes(plan.family) if plan.config.wire.down != "float32" else 0
    return _state_bytes(plan.family) * copies * (1 + len(plan.sends)) + 2 * memory + received


def _coverage_notes(setting: Setting, counts: Counter[int]) -> list[str]:
    missing = sum(uncovered(setting.family, [k for k, n in counts.items() if n]).values())
    rounds = setting.config.rounds
    among = f"{SAMPLED_ROUNDS} of {rounds}" if rounds > SAMPLED_ROUNDS else f"all {rounds}"
    idle = [str(k) for k in range(1, len(setting.family) + 1) if not counts[k]]
    remedy = "give more clients a larger submodel"
    if setting.config.clients.unlocks is not None:
        remedy += ", or small_first fewer rounds"
    notes = []
    if idle:
        notes.append(
            f"coverage: nobody trains submodel {', '.join(idle)} in {among} rounds; {remedy}"
        )
    if missing:
        notes.append(
            f"coverage: nobody trains {missing} elements of the global model in {among} rounds; "
            f"{remedy}"
        )
    return notes


def _memory_notes(needed: int) -> list[str]:
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # a system that does not tell
        return []
    note = (
        f"memory: this machine has {there / 2**30:.1f} GiB, about {needed / 2**30:.1f} are needed; "
        "take fewer workers, a smaller batch or a larger machine"
    )
    return [note] if needed > there else []


def _training_steps(
    setting: Setting, profiles: Sequence[SubmodelProfile], times: Mapping[int, StepTime]
) -> dict[int, float]:
    """Return the seconds of a step on average, with the members within by their work."""
    if not setting.family.within:
        return {k: time.seconds for k, time in times.items()}
    alone = setting.alone().profiles()
    return {
        k: time.seconds * profiles[k - 1].train_macs / alone[k - 1].train_macs
        for k, time in times.items()
    }


def _seconds(
    setting: Setting,
    rounds: Sequence[Sequence[TrainTask]],
    times: Mapping[int, StepTime],
    steps: Mapping[int, float],
    workers: int,
) -> float:
    """Return the time of all rounds, shared out among workers as the engine does.

    A submodel is evaluated alone, whatever is trained inside it.
    """
    config = setting.config
    batch, sizes = config.local.batch_size, setting.partition.sizes
    an_example = {k: seconds / batch for k, seconds in steps.items()}
    training = 0.0
    for tasks in rounds:
        busy = [0.0] * workers
        for task in tasks:
            work = config.local.epochs * int(sizes[task.client]) * an_example[task.submodel]
            busy[busy.index(min(busy))] += work
        training += max(busy)
    measures = needs_measuring(setting.family, recalibrate=config.server.recalibrate)
    scored = setting.test_examples + (len(setting.partition.indices) if measures else 0)
    forward = sum(time.seconds for time in times.values()) / batch / PASSES
    evaluation = scored * forward / workers
    evaluations = -(-config.rounds // config.server.evaluate_every)
    return training * config.rounds / len(rounds) + evaluations * evaluation
