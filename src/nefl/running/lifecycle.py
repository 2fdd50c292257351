"""From a configuration to a finished run: the one place where all parts meet."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from nefl.artifacts.facts import drop_facts, versions, write_facts
from nefl.artifacts.identity import check_unchanged, warn_of_changed_code
from nefl.artifacts.kept import read_kept
from nefl.artifacts.notes import read_log, stored_config
from nefl.artifacts.runfolder import RunFolder
from nefl.artifacts.summary import summarise, was_measured
from nefl.client.schedule import first_difference
from nefl.client.training import batches_per_epoch
from nefl.config import EngineConfig, RunConfig
from nefl.config.reading import config_from
from nefl.engines.devices import has_precision, pick_device, place_sums, place_workers
from nefl.engines.serial import SerialEngine
from nefl.engines.tuning import tuned_for
from nefl.engines.waiting import WaitingWorkers
from nefl.errors import RunError
from nefl.methods import method_of
from nefl.nesting.spec import Family
from nefl.recipes import load_recipe
from nefl.references import check_code, remember_code
from nefl.rounds import Engine, Observer, check_observers, run_training
from nefl.running.assembly import Setting, assemble, settings_checksum, with_absolute_paths
from nefl.running.compiling import settled
from nefl.running.first_state import FirstState, first_state
from nefl.running.recorder import Recorder
from nefl.running.small_first import with_small_first
from nefl.server.closing import check_clock
from nefl.state import Evaluation, ServerState
from nefl.tasks.task import Task

STOPPING = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask a run to stop."""

Connect = Callable[[Setting, RunFolder], tuple[Setting, Engine]]
"""Makes an engine that the configuration cannot ask for, and the setting that goes with it."""


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        path: its folder.
        family: its family.
        state: the final weights; `extract` cuts a submodel out of them.
        summary: what came out, as in `summary.json`.
    """

    path: Path
    family: Family
    state: ServerState
    summary: Mapping[str, Any]


def train(
    config: RunConfig | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    task: Task | None = None,
    name: str = "run",
    observers: Sequence[Observer] = (),
    started: Callable[[Path], None] | None = None,
    connect: Connect | None = None,
) -> RunResult:
    """Train a family over simulated clients, or over those that `connect` reaches.

    Args:
        config: a configuration, settings to make one from, or a recipe's name or file.
        out: the run's folder, which must be new or empty; a numbered one in `runs` if left out.
        task: what is learned, where it is given in memory instead of named in the configuration.
        name: what such a numbered folder is called, where the configuration is no recipe.
        observers: told of each round; see `Observer`.
        started: told the folder as soon as it is there.
        connect: makes the engine, where it is not one of this machine's.

    Raises:
        NeflError: if the configuration, the data or the folder cannot be used.
        KeyboardInterrupt: after a checkpoint was written; `resume` goes on from there.
    """
    check_observers(observers)
    if isinstance(config, str | Path):
        name = str(config)
        config = load_recipe(name)
    elif isinstance(config, RunConfig):
        config = config_from(config.to_dict())  # a tree made by hand is checked like any other
    else:
        config = config_from(config)
    config = with_absolute_paths(config)
    remember_code(config)  # so that the run can be gone on with and evaluated unasked
    config = with_small_first(config)
    if connect is None:
        check_clock(config)
    with closing(_waiting_workers(config, connect)) as waiting:
        setting, why = settled(assemble(config, task))
        config = setting.config
        first = first_state(setting)  # a file of weights that does not fit leaves no folder behind
        folder = RunFolder.create(Path(out) if out is not None else claim_folder(name), config)
        try:
            if started is not None:
                started(folder.path)
            noted = {"compile": why} if why else {}
            folder.log("start", round=0, seed=config.seed, **noted, **versions())
            folder.check_identity(setting.identity())
            return _run(folder, setting, observers, connect, first, waiting)
        finally:
            folder.close()


def _waiting_workers(config: RunConfig, connect: Connect | None) -> WaitingWorkers:
    """Start the workers' processes while data and model are prepared, if there are to be any.

    They are left for later where steps are timed first.
    """
    early = connect is None and config.local.compile != "auto"
    count = len(place_workers(config.engine, config.clients.per_round)) if early else 0
    return WaitingWorkers(count)


def claim_folder(recipe: str) -> Path:
    """Make a new folder in `runs`, named after a recipe and numbered; nobody else gets it."""
    for number in count(1):
        path = Path("runs") / f"{Path(recipe).stem}-{number}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError(f"{path}: cannot be made ({error.strerror})") from None
        return path
    raise AssertionError("numbers have no end")


def resume(
    run: str | Path,
    *,
    engine: EngineConfig | None = None,
    rounds: int | None = None,
    task: Task | None = None,
    changed_code: bool = False,
    observers: Sequence[Observer] = (),
    connect: Connect | None = None,
    trust_code: bool = False,
) -> RunResult:
    """Go on with a run that was stopped or killed; a finished one is returned as it is.

    Args:
        run: the run's folder.
        engine: another engine than the one it was started with.
        rounds: another number of rounds, where its learning rate so far does not depend on that.
        task: the task that it was given, where that has functions of its own.
        changed_code: go on although the source of a model or data function of one's own changed.
        observers: told of each round; see `Observer`.
        connect: as for `train`.
        trust_code: import what the run names, though it was never named on this machine.

    Raises:
        NeflError: if there is no such run, or it is in use, damaged or has changed, or it cannot
            have so many rounds, or names code of a stranger's.
    """
    check_observers(observers)
    check_code(stored_config(Path(run)), Path(run), trusted=trust_code)
    folder = RunFolder(Path(run))
    try:
        config = folder.config
        if with_small_first(config) != config:
            raise RunError(
                f"{folder.path}: was started before {config.model.method} unlocked its submodels "
                "in turn, and would go on by another rule; start a new run, from this one with "
                "model.start"
            )
        setting = assemble(config if engine is None else replace(config, engine=engine), task)
        folder.check_identity(setting.identity(), allow_code=changed_code)
        if rounds is not None and rounds != config.rounds:
            setting = _extend(folder, setting, rounds)
        return _run(folder, setting, observers, connect)
    finally:
        folder.close()


def _extend(folder: RunFolder, setting: Setting, rounds: int) -> Setting:
    """Give a run another number of rounds, in its folder too.

    Raises:
        RunError: if it would not be what a run of so many rounds had been from the start.
    """
    config, local = folder.config, setting.config.local
    longer = config_from(config.to_dict() | {"rounds": rounds}, "rounds")
    state, _ = folder.load_newest(setting.family)
    done = 0 if state is None else state.round_number
    if rounds < done:
        raise RunError(f"{folder.path}: has done {done} rounds, more than {rounds}; give more")
    if rounds == done and not was_measured(folder.path, done):
        raise RunError(
            f"{folder.path}: round {done} was not evaluated, as a last round always is; give more "
            "rounds than are done"
        )
    steps = {
        local.epochs * batches_per_epoch(int(size), local.batch_size)
        for size in setting.partition.sizes
    }
    at = first_difference(config.schedule, config.rounds, rounds, done, steps)
    if at is not None:
        raise RunError(
            f"{folder.path}: cannot have {rounds} rounds instead of {config.rounds}: its learning "
            f"rate ({config.schedule.name}) follows the share of all rounds, and in round {at} it "
            "would have been another; runs with schedule.name = constant can be extended, and a "
            "new run can start from this one with model.start"
        )
    if method_of(config.model).objective.follows_rounds:
        raise RunError(
            f"{folder.path}: cannot have {rounds} rounds instead of {config.rounds}: what its "
            f"method, {config.model.method}, does follows the share of all rounds; start a new run "
            "from this one with model.start"
        )
    extended = replace(setting, config=longer)
    if extended.profiles() != setting.profiles():
        if setting.plan.cohort.fleet is not None:
            raise RunError(
                f"{folder.path}: cannot have {rounds} rounds instead of {config.rounds}: devices "
                "are judged by what a round costs on average, and that is another with so many "
                "rounds; start a new run from this one with model.start"
            )
        drop_facts(folder.path)  # the next start notes them anew
    folder.extend(longer, settings_checksum(longer))
    longer = replace(longer, engine=setting.config.engine)
    return replace(setting, config=longer, plan=replace(setting.plan, config=longer))


def evaluate(
    run: str | Path,
    *,
    best: bool = False,
    recalibrate: bool = False,
    device: str | None = None,
    task: Task | None = None,
    trust_code: bool = False,
) -> list[Evaluation]:
    """Measure every submodel of a run on its test set.

    Args:
        run: the run's folder; it may be in use.
        best: take the best checkpoint instead of the newest.
        recalibrate: measure batch norms anew over all clients' training data first.
        device: compute there instead of where the run was trained.
        task: as for `resume`.
        trust_code: as for `resume`.

    Raises:
        NeflError: if there is no such run or no checkpoint, or it names code of a stranger's.
    """
    path = Path(run)
    config = stored_config(path)
    check_code(config, path, trusted=trust_code)
    if device is not None:
        config = replace(config, engine=replace(config.engine, devices=(device,)))
    if recalibrate:
        config = replace(config, server=replace(config.server, recalibrate=True))
    if not has_precision(config.local.precision, pick_device(config.engine.devices[0])):
        config = replace(config, local=replace(config.local, precision="float32"))
    setting = assemble(config, task)
    check_unchanged(path, setting.data_identity())
    warn_of_changed_code(path, setting.code_identity())
    state = read_kept(path, setting.family, best=best)
    with tuned_for(config):
        engine = SerialEngine(setting.site(), setting.family)
        return engine.evaluate(state, range(1, len(setting.family) + 1))


def draw_partition(run: str | Path, *, trust_code: bool = False) -> str:
    """Return a picture in text of how the classes spread over the clients of a run.

    Args:
        run: the run's folder.
        trust_code: as for `resume`.

    Raises:
        NeflError: if there is no such run, or it names code of a stranger's.
    """
    config = stored_config(Path(run))
    check_code(config, Path(run), trusted=trust_code)
    setting = assemble(config)
    check_unchanged(Path(run), setting.data_identity())
    return setting.draw_partition()


def _run(
    folder: RunFolder,
    setting: Setting,
    observers: Sequence[Observer],
    connect: Connect | None,
    first: FirstState | None = None,
    waiting: WaitingWorkers | None = None,
) -> RunResult:
    setting.partition.save(folder.partition)
    write_facts(folder.path, setting.facts)
    state, problems = folder.load_newest(setting.family)
    for problem in problems:
        folder.log("damaged", reason=problem)
    if state is None:
        begin = first if first is not None else first_state(setting)
        if begin.source is not None:
            _check_source(folder, begin.source)
            folder.log("started_from", **begin.source)
        state = begin.state
    else:
        folder.log("resume", round=state.round_number)
    if state.round_number < setting.config.rounds:
        folder.drop_summary()
        state = _train_on(state, folder, setting, observers, connect, waiting)
    summary = summarise(folder.path, setting.family, state, setting.primary)
    folder.write_summary(summary)
    return RunResult(folder.path, setting.family, state, summary)


def _check_source(folder: RunFolder, source: Mapping[str, object]) -> None:
    """Raise if a run began from other weights before it was stopped.

    Raises:
        RunError: naming where they came from.
    """
    for event in read_log(folder.path):
        if event.get("event") == "started_from" and event.get("weights") != source["weights"]:
            raise RunError(
                f"{folder.path}: began from {source['path']}, which holds other weights now; put "
                "the old ones back, or start another run"
            )


def _train_on(
    state: ServerState,
    folder: RunFolder,
    setting: Setting,
    observers: Sequence[Observer],
    connect: Connect | None,
    waiting: WaitingWorkers | None,
) -> ServerState:
    recorder = Recorder(folder, setting.config, state, setting.primary, setting.work().of)
    with tuned_for(setting.config):
        if connect is None:
            engine = setting.engine(folder.partition, waiting)
        else:
            setting, engine = connect(setting, folder)
        try:
            if connect is None:
                state = state.to(place_sums(setting.config.engine, setting.workers()))
            return run_training(state, setting.plan, engine, [recorder, *observers])
        except BaseException as error:
            with _uninterrupted():
                recorder.save()
                with suppress(RunError):  # the disk may be what stopped the run
                    folder.log("stopped", reason=_why(error))
            raise
        finally:
            engine.close()


def _why(error: BaseException) -> str:
    """Say in a line why a run ends before its time."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) or type(error).__name__


def pass_over(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal by doing nothing. Where one is ignored only now, Python complains of those
    that came just before.
    """


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let an impatient second signal not spoil the checkpoint that the first one asked for."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOPPING}
    for number in before:
        signal.signal(number, pass_over)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # then it was not Python that had set it
                signal.signal(number, handler)
