"""The round, and the run of many of them. Free of devices, disks and networks."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from time import monotonic
from typing import Protocol

from nefl.config import RunConfig, ServerConfig, WireFormat
from nefl.errors import ConfigError, RunError, UpdateError
from nefl.nesting.rolling import roll
from nefl.nesting.spec import Family
from nefl.server.averages import find_average
from nefl.server.check import NOT_FINITE, not_finite_in
from nefl.server.closing import simulated_closing, simulated_times
from nefl.server.cohort import (
    CohortPlan,
    assign_submodels,
    by_tier,
    sample_cohort,
    with_unlocked,
)
from nefl.server.ledger import note_round, open_ledger
from nefl.server.limits import within_limits
from nefl.server.stepping import make_aggregate, remembering
from nefl.server.steps import ServerStep
from nefl.state import ClientFailure, ClientUpdate, Evaluation, ServerState, TrainTask
from nefl.wire.layouts import travel_bytes


class Engine(Protocol):
    """What carries tasks to clients and updates back; nothing else."""

    def train(
        self, state: ServerState, tasks: Sequence[TrainTask]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        """Yield what became of each task, in the order of the tasks.

        Where clients are real and a round may close before all have answered, it is the order in
        which they came. An update's tensors are valid until the next one is asked for.
        """

    def settle(self, round_number: int, counted: Collection[int]) -> None:
        """Learn whose updates counted in a round, before anything is made of it.

        What the other clients of the round keep for themselves must be as it was before. A round
        that is tried again is not settled: nothing of it counts.
        """

    def evaluate(self, state: ServerState, submodels: Sequence[int]) -> list[Evaluation]:
        """Measure submodels on the test set."""

    def close(self) -> None:
        """Let go of processes and memory."""


@dataclass(frozen=True)
class Plan:
    """What stays the same in all rounds of a run.

    Attributes:
        config: the run.
        family: its family.
        cohort: what the choice of a cohort rests on.
        rolling: whether each round shifts which channels come first.
        dealt: how many examples the server dealt each client.
        step: what the server makes of a round's average; the average itself if left out.
        receives: the sets of the step's memory that clients receive beside the weights.
        sends: the sets of tensors that clients send beside their weights.
        average: how updates are averaged, where that is part of the method.
    """

    config: RunConfig
    family: Family
    cohort: CohortPlan
    rolling: bool = False
    dealt: Sequence[int] = ()
    step: ServerStep | None = None
    receives: tuple[str, ...] = ()
    sends: tuple[str, ...] = ()
    average: str = ""

    @property
    def server(self) -> ServerConfig:
        """The server's settings, with the method's average where it has one."""
        return find_average(self.config.server, self.average, self.config.model.method)


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round.

    Attributes:
        round_number: the round, from 1.
        tasks: how many clients were given a task.
        seconds: its wall time without evaluation.
        trained: how many clients trained each submodel, by its number.
        loss: mean of the clients' mean training losses.
        bytes_down: bytes of weights sent to clients.
        bytes_up: bytes of weights that counted.
        failures: tasks that brought no update and updates that were refused.
        attempt: how often the round was tried before.
        simulated: simulated times, where devices are simulated.
        clients: which clients' updates of each submodel counted, by its number.
        notes: what was changed of updates that counted, and why.
        wanted: how many updates were wanted; fewer than tasks, where more clients are asked.
        discarded: tasks whose updates came when the round had closed.
        tiers: where rounds may close early, by tier or kind of device: how many clients were
            `asked`, `counted` and `discarded`.
        order: the clients whose updates counted in the order of the sums, where that is not the
            order of the tasks.
    """

    round_number: int
    tasks: int
    seconds: float
    trained: dict[int, int]
    loss: float
    bytes_down: int
    bytes_up: int
    failures: tuple[ClientFailure, ...]
    attempt: int = 0
    simulated: dict[str, float] | None = None
    clients: dict[int, list[int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    wanted: int = 0
    discarded: tuple[ClientFailure, ...] = ()
    tiers: dict[str, dict[str, int]] = field(default_factory=dict)
    order: tuple[int, ...] = ()


class Observer:
    """What is told of a run: logs, checkpoints, progress.

    Derive from it and write the methods that are needed; the others do nothing. An object of
    another class may have only some of them too.
    """

    def round_done(
        self, state: ServerState, report: RoundReport, evaluations: Sequence[Evaluation] | None
    ) -> None:
        """Take note of a finished round."""

    def task_done(self, done: int, tasks: int) -> None:
        """Take note that so many tasks of the round have ended."""

    def round_repeated(self, report: RoundReport, reason: str) -> None:
        """Take note of a round that did not count, and why."""


EVENTS = ("round_done", "task_done", "round_repeated")


def check_observers(observers: Sequence[Observer]) -> None:
    """Raise if one of them could be told nothing.

    Raises:
        ConfigError: naming its class and what it may have.
    """
    if not isinstance(observers, Sequence):
        raise ConfigError(
            f"observers: {type(observers).__name__} is no list; give one, as in [mine]"
        )
    for observer in observers:
        if isinstance(observer, type):
            raise ConfigError(
                f"observers: {observer.__name__} is a class; give {observer.__name__}()"
            )
        if not any(_has_own(observer, event) for event in EVENTS):
            raise ConfigError(
                f"observers: {type(observer).__name__} has none of the methods "
                f"{', '.join(EVENTS)}; derive it from nefl.Observer and give it one"
            )


def _has_own(observer: object, event: str) -> bool:
    """Whether an observer has a method of its own for an event, not the empty one of its base."""
    own = getattr(type(observer), event, None)
    return callable(getattr(observer, event, None)) and own is not getattr(Observer, event)


def _tell(observers: Sequence[Observer], event: str, *what: object) -> None:
    """Call a method of each observer that has it."""
    for observer in observers:
        method = getattr(observer, event, None)
        if method is not None:
            method(*what)


def run_round(
    state: ServerState,
    plan: Plan,
    engine: Engine,
    observers: Sequence[Observer] = (),
    attempt: int = 0,
) -> tuple[ServerState, RoundReport]:
    """Draw a cohort, let it train, average what comes back."""
    started = monotonic()
    state = remembering(state, plan.family, plan.step)
    round_number = state.round_number + 1
    if plan.rolling:
        state = roll(state, plan.family)
    state = with_unlocked(state, plan.family, plan.cohort)
    ledger = open_ledger(state.ledger, plan.config.clients)
    cohort = sample_cohort(plan.cohort, round_number, attempt, ledger)
    tasks = assign_submodels(cohort, plan.cohort, round_number)
    total = make_aggregate(
        state,
        plan.family,
        plan.server,
        step=plan.step,
        sends=plan.sends,
        population=plan.config.clients.count,
    )
    closed = simulated_closing(plan.config, plan.cohort, tasks)
    if closed is None:
        found = engine.train(state, tasks)
    else:
        found = chain(engine.train(state, closed.counted), closed.left)
    failures: list[ClientFailure] = []
    counted: list[TrainTask] = []
    losses: list[float] = []
    notes: list[str] = []
    results = within_limits(
        _counted(found, len(tasks), observers),
        state,
        plan.family,
        plan.config.server,
        dealt=plan.dealt,
        sends=plan.sends,
        note=notes.append,
    )
    for result in results:  # in task order: sums repeat
        if isinstance(result, ClientFailure):
            failures.append(result)
            continue
        try:
            total.add(result)
        except UpdateError as error:
            failures.append(ClientFailure(result.task, str(error)))
            continue
        counted.append(result.task)
        losses.append(result.metrics.get("loss", math.nan))
    known = [loss for loss in losses if math.isfinite(loss)]  # what one client says spoils no mean
    clients = _by_submodel(counted)
    trained = {submodel: len(clients[submodel]) for submodel in sorted(clients)}
    discarded = tuple(failure for failure in failures if failure.discarded)
    times = simulated_times(plan.config, plan.cohort, cohort, tasks, round_number)
    wire = plan.config.wire
    report = RoundReport(
        round_number=round_number,
        tasks=len(tasks),
        seconds=monotonic() - started,
        trained=trained,
        loss=sum(known) / len(known) if known else math.nan,
        bytes_down=_bytes(plan, Counter(t.submodel for t in tasks), plan.receives, wire.down),
        bytes_up=_bytes(plan, trained, plan.sends, wire.up),
        failures=tuple(failure for failure in failures if not failure.discarded),
        attempt=attempt,
        simulated=None if times is None else asdict(times),
        clients=clients,
        notes=tuple(notes),
        wanted=min(len(tasks), plan.config.clients.per_round),
        discarded=discarded,
        tiers=by_tier(
            plan.cohort, asked=tasks, counted=counted, discarded=[f.task for f in discarded]
        )
        if plan.config.clients.closes_early
        else {},
        order=_unusual_order(tasks, counted),
    )
    heard = {task.client for task in counted}
    late = () if plan.cohort.roster is None else plan.cohort.roster.failed()
    ledger = note_round(
        ledger,
        plan.config.clients,
        round_number,
        heard=heard,
        failed=[client for client in late if client not in heard]
        + [failure.task.client for failure in report.failures],
    )
    return replace(total.finish(), ledger=ledger), report


def _by_submodel(tasks: Sequence[TrainTask]) -> dict[int, list[int]]:
    clients: dict[int, list[int]] = {}
    for task in tasks:
        clients.setdefault(task.submodel, []).append(task.client)
    return clients


def _unusual_order(tasks: Sequence[TrainTask], counted: Sequence[TrainTask]) -> tuple[int, ...]:
    """Return the clients whose updates counted, if they were not added in the order of the tasks.

    What a client counts for may be smaller than what it was offered.
    """
    clients = [task.client for task in counted]
    place = {task.client: number for number, task in enumerate(tasks)}
    return () if clients == sorted(clients, key=place.__getitem__) else tuple(clients)


def _bytes(plan: Plan, counts: Mapping[int, int], sets: Sequence[str], form: WireFormat) -> int:
    """Return the bytes of so many messages with each submodel."""
    return sum(n * travel_bytes(plan.family, k, sets, form) for k, n in counts.items())


def _counted(
    results: Iterator[ClientUpdate | ClientFailure], tasks: int, observers: Sequence[Observer]
) -> Iterator[ClientUpdate | ClientFailure]:
    """Pass results on, telling the observers of each."""
    for done, result in enumerate(results, start=1):
        _tell(observers, "task_done", done, tasks)
        yield result


def run_training(
    state: ServerState, plan: Plan, engine: Engine, observers: Sequence[Observer]
) -> ServerState:
    """Train until the last round of the plan, telling the observers of each.

    Raises:
        RunError: if a round does not count as often as it may be tried.
    """
    config = plan.config
    while state.round_number < config.rounds:
        state, report = _round_that_counts(state, plan, engine, observers)
        evaluations = None
        last = state.round_number == config.rounds
        if last or state.round_number % config.server.evaluate_every == 0:
            evaluations = engine.evaluate(state, range(1, len(plan.family) + 1))
        _tell(observers, "round_done", state, report, evaluations)
    return state


def _round_that_counts(
    state: ServerState, plan: Plan, engine: Engine, observers: Sequence[Observer]
) -> tuple[ServerState, RoundReport]:
    server = plan.config.server
    reason = remedy = ""
    for attempt in range(server.attempts):
        after, report = run_round(state, plan, engine, observers, attempt)
        reason, remedy = _why_not(after, report, server.quorum)
        if not reason:
            counted = {client for some in report.clients.values() for client in some}
            engine.settle(report.round_number, counted)
            return after, report
        _tell(observers, "round_repeated", report, reason)
        state = replace(state, ledger=after.ledger)  # who failed now is not tried again at once
    raise RunError(
        f"round {state.round_number + 1} failed {server.attempts} times: {reason}; {remedy}"
    )


def _why_not(after: ServerState, report: RoundReport, quorum: float) -> tuple[str, str]:
    """Say why a round does not count, and the remedy; nothing if it does."""
    counted = sum(report.trained.values())
    if not report.wanted and not report.failures:
        reason = "no client of its cohort can train a submodel"
        return reason, "ask more of them (clients.per_round), or take a smaller submodel"
    if not counted or counted < quorum * report.wanted:
        last = report.failures[-1].reason if report.failures else "the others came too late"
        remedy = "mend the clients, or lower server.quorum, then resume"
        if NOT_FINITE in last:  # training went out of bounds, as a rule everywhere at once
            remedy = (
                "if that is so at every client, start anew with a smaller local.learning_rate; "
                f"else {remedy}"
            )
        return f"only {counted} of {report.wanted} updates counted ({last})", remedy
    culprit = not_finite_in(after)
    if culprit is not None:
        remedy = (
            "some client sends numbers near the largest there are: mend it and resume, or start "
            "anew with server.norm_limit, which names it, or a smaller local.learning_rate"
        )
        return f"{culprit} is not finite after averaging {counted} updates that are", remedy
    return "", ""
