"""From a configuration to a finished run: the one place where all parts meet."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from nefl.artifacts.checkpoint import load_state, state_sha256
from nefl.artifacts.runfolder import RunFolder, read_log, stored_config
from nefl.config import EngineConfig, RunConfig, config_from
from nefl.data import (
    ImageDataset,
    Partition,
    draw_label_distribution,
    load_dataset,
    make_transform,
    partition_clients,
)
from nefl.data import subset as choose_examples
from nefl.engines.serial import SerialEngine
from nefl.engines.site import Site, augmentation, pick_device
from nefl.engines.tuning import tune_process
from nefl.engines.workers import WorkersEngine
from nefl.errors import ConfigError, RunError
from nefl.methods import family_of
from nefl.nesting.coverage import min_coverage
from nefl.nesting.profile import profile_family
from nefl.nesting.spec import Family
from nefl.recipes import load_recipe
from nefl.rounds import Engine, Observer, Plan, RoundReport, run_training
from nefl.server.cohort import CohortPlan
from nefl.server.devices import Fleet
from nefl.state import Evaluation, ServerState


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
    config: RunConfig | Mapping[str, Any] | str,
    out: str | Path | None = None,
    *,
    observers: Sequence[Observer] = (),
) -> RunResult:
    """Train a family over simulated clients.

    Args:
        config: a configuration, settings to make one from, or a recipe's name or file.
        out: the run's folder, which must be new or empty; a numbered one in `runs` if left out.
        observers: told after each round.

    Raises:
        NeflError: if the configuration, the data or the folder cannot be used.
        KeyboardInterrupt: after a checkpoint was written; `resume` goes on from there.
    """
    if out is None:
        out = free_folder(config if isinstance(config, str) else "run")
    if isinstance(config, str):
        config = load_recipe(config)
    elif not isinstance(config, RunConfig):
        config = config_from(config)
    config = _with_absolute_paths(config)
    setting = prepare(config)
    folder = RunFolder.create(Path(out), config)
    try:
        folder.log("start", round=0, seed=config.seed, torch=torch.__version__)
        return _run(folder, setting, observers)
    finally:
        folder.close()


def _with_absolute_paths(config: RunConfig) -> RunConfig:
    """Let a run find its files from whatever folder it is resumed in."""

    def absolute(path: str | None) -> str | None:
        return str(Path(path).absolute()) if path and Path(path).exists() else path

    data = replace(config.data, root=absolute(config.data.root), cache=absolute(config.data.cache))
    partition = replace(config.partition, file=absolute(config.partition.file))
    return replace(config, data=data, partition=partition)


def free_folder(recipe: str) -> Path:
    """Return a folder in `runs` that is not there yet, named after a recipe and numbered."""
    name = Path(recipe).stem
    return next(
        path
        for number in range(1, 1_000_000)
        if not (path := Path("runs") / f"{name}-{number}").exists()
    )


def resume(
    run: str | Path, *, engine: EngineConfig | None = None, observers: Sequence[Observer] = ()
) -> RunResult:
    """Go on with a run that was stopped or killed; a finished one is returned as it is.

    Args:
        run: the run's folder.
        engine: another engine than the one it was started with.
        observers: told after each round.

    Raises:
        NeflError: if there is no such run, or it is in use or damaged.
    """
    folder = RunFolder(Path(run))
    try:
        config = folder.config
        setting = prepare(config if engine is None else replace(config, engine=engine))
        return _run(folder, setting, observers)
    finally:
        folder.close()


def evaluate(run: str | Path, *, best: bool = False) -> list[Evaluation]:
    """Measure every submodel of a run on its test set.

    Args:
        run: the run's folder; it may be in use.
        best: take the best checkpoint instead of the newest.

    Raises:
        NeflError: if there is no such run or no checkpoint.
    """
    path = Path(run)
    setting = prepare(stored_config(path))
    checkpoints = path / "checkpoints"
    found = sorted(checkpoints.glob("round-*.safetensors"))
    chosen = checkpoints / "best.safetensors" if best else next(reversed(found), None)
    if chosen is None:
        raise RunError(f"{path}: has no checkpoint yet")
    state = load_state(chosen, setting.family)
    tune_process(setting.config.engine.threads)
    engine = SerialEngine(setting.site(), setting.family)
    return engine.evaluate(state, range(1, len(setting.family) + 1))


def draw_partition(run: str | Path) -> str:
    """Return a picture in text of how the classes spread over the clients of a run.

    Raises:
        NeflError: if there is no such run.
    """
    setting = prepare(stored_config(Path(run)))
    labels = setting.dataset.train.labels
    return draw_label_distribution(setting.partition, labels, setting.dataset.classes)


@dataclass(frozen=True, eq=False)
class Setting:
    """All that a run needs, made from its configuration and checked before anything starts."""

    config: RunConfig
    family: Family
    dataset: ImageDataset
    partition: Partition
    input_shape: tuple[int, int, int]
    test_examples: int

    def site(self) -> Site:
        """Return a place to train in this process."""
        device = pick_device(self.config.engine.device)
        return Site(self.config, self.family, self.dataset, self.partition, device)

    def plan(self) -> Plan:
        """Return what stays the same in all rounds."""
        clients, fleet = self.config.clients, None
        if clients.capability == "devices":
            batch = self.config.local.batch_size
            profiles = profile_family(self.family, self.input_shape, batch)
            sizes = self.partition.sizes
            fleet = Fleet(clients, profiles, self.config.local.epochs, sizes, self.config.seed)
        cohort = CohortPlan(clients, len(self.family), self.config.seed, fleet)
        return Plan(self.config, self.family, cohort)


def prepare(config: RunConfig) -> Setting:
    """Load the data, deal it out and build the family.

    Raises:
        NeflError: if any of it cannot be had.
    """
    data = config.data
    pick_device(config.engine.device)
    dataset = load_dataset(data.name, root=data.root, cache=data.cache, options=dict(data.options))
    policy = augmentation(config, dataset.name)
    transform = make_transform(policy, dataset.mean, dataset.std, dataset.input_shape, train=True)
    family = family_of(config.model, dataset.classes, transform.output_shape)
    chosen = choose_examples(dataset, data.train, data.test, config.seed)
    dealt = partition_clients(
        dataset.train.labels[chosen.train],
        config.clients.count,
        config.partition.kind,
        alpha=config.partition.alpha,
        classes_per_client=config.partition.classes_per_client,
        path=config.partition.file,
        seed=config.seed,
        min_examples=config.partition.min_examples,
    )
    partition = Partition(chosen.train[dealt.indices], dealt.offsets)
    return Setting(config, family, dataset, partition, transform.output_shape, len(chosen.test))


def count_workers(engine: EngineConfig) -> int:
    """Return how many worker processes an engine has; 0 means to train in this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    workers = engine.workers or max(1, (cores or 1) // engine.threads)
    if engine.name == "auto":
        on_cpu = pick_device(engine.device).type == "cpu"
        return workers if on_cpu and workers > 1 else 0
    return workers if engine.name == "workers" else 0


@contextmanager
def _engine(setting: Setting, partition: Path) -> Iterator[Engine]:
    threads = torch.get_num_threads()
    tune_process(setting.config.engine.threads)
    workers = count_workers(setting.config.engine)
    engine: Engine
    if workers:
        if setting.dataset.folder is None:
            raise ConfigError("workers need data that is cached on disk; use the serial engine")
        engine = WorkersEngine(
            setting.config,
            setting.family,
            dataset=setting.dataset.folder,
            input_shape=setting.input_shape,
            partition=partition,
            test_examples=setting.test_examples,
            workers=workers,
        )
    else:
        engine = SerialEngine(setting.site(), setting.family)
    try:
        yield engine
    finally:
        engine.close()
        torch.set_num_threads(threads)


def _run(folder: RunFolder, setting: Setting, observers: Sequence[Observer]) -> RunResult:
    setting.partition.save(folder.partition)
    state, problems = folder.load_newest(setting.family)
    for problem in problems:
        folder.log("damaged", reason=problem)
    if state is None:
        state = setting.family.initial_state(setting.config.seed)
    else:
        folder.log("resume", round=state.round_number)
    recorder = _Recorder(folder, setting.config, state)
    if state.round_number < setting.config.rounds:
        device = pick_device(setting.config.engine.device)
        state = _on_device(state, device) if not count_workers(setting.config.engine) else state
        with _engine(setting, folder.partition) as engine:
            try:
                state = run_training(state, setting.plan(), engine, [recorder, *observers])
            except BaseException:
                recorder.save()
                raise
    summary = summarise(folder.path, setting.family, state)
    folder.write_summary(summary)
    return RunResult(folder.path, setting.family, state, summary)


def _on_device(state: ServerState, device: torch.device) -> ServerState:
    if device.type == "cpu":
        return state
    return ServerState(
        state.round_number,
        {name: tensor.to(device) for name, tensor in state.shared.items()},
        tuple({n: t.to(device) for n, t in own.items()} for own in state.per_submodel),
    )


class _Recorder:
    """Writes the log and the checkpoints of a run."""

    def __init__(self, folder: RunFolder, config: RunConfig, state: ServerState) -> None:
        self._folder = folder
        self._config = config
        self._state = state
        self._saved = state.round_number
        self._best = best_accuracy(folder.path, state.round_number)
        self._last = monotonic()

    def task_done(self, done: int, tasks: int) -> None:
        """Nothing to write."""

    def round_done(
        self, state: ServerState, report: RoundReport, evaluations: Sequence[Evaluation] | None
    ) -> None:
        """Log a round, and save a checkpoint when it is time."""
        now = monotonic()
        content = asdict(report)
        content["round"] = content.pop("round_number")
        content["failures"] = [
            {"client": f.task.client, "submodel": f.task.submodel, "reason": f.reason}
            for f in report.failures
        ]
        content["wall_seconds"], self._last = now - self._last, now
        if evaluations is not None:
            content["accuracy"] = [e.accuracy for e in evaluations]
            content["test_loss"] = [e.loss for e in evaluations]
        self._folder.log("round", **content)
        self._state = state
        if state.round_number % self._config.server.checkpoint_every == 0:
            self.save()
        if evaluations is not None:
            average = mean_accuracy(evaluations)
            if average > self._best:
                self._best = average
                self._folder.save_best(state, average)
        if state.round_number == self._config.rounds:
            self.save()

    def round_repeated(self, report: RoundReport, reason: str) -> None:
        """Log a round that did not count."""
        self._folder.log("repeated", round=report.round_number, reason=reason)

    def save(self) -> None:
        """Save a checkpoint of the last finished round, if that is not done."""
        if self._state.round_number > self._saved:
            self._folder.save_checkpoint(self._state, self._config.server.keep)
            self._saved = self._state.round_number


def mean_accuracy(evaluations: Sequence[Evaluation]) -> float:
    """Return the mean accuracy over all submodels."""
    return sum(e.accuracy for e in evaluations) / len(evaluations)


def rounds_of(run: Path, until: int | None = None) -> dict[int, dict[str, Any]]:
    """Return the log's entry for each round; of a round that was run again, the last."""
    return {
        event["round"]: event
        for event in read_log(run)
        if event.get("event") == "round" and (until is None or event["round"] <= until)
    }


def best_accuracy(run: Path, until: int) -> float:
    """Return the best mean accuracy that a run's log has up to a round, 0 if none."""
    rounds = rounds_of(run, until).values()
    return max((_mean(r["accuracy"]) for r in rounds if "accuracy" in r), default=0.0)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def summarise(run: Path, family: Family, state: ServerState) -> dict[str, Any]:
    """Return what came out of a run, from its log and its final weights."""
    rounds = list(rounds_of(run, state.round_number).values())
    updates = {k: sum(r["trained"].get(str(k), 0) for r in rounds) for k in _numbers(family)}
    accuracy: list[float] = next((r["accuracy"] for r in reversed(rounds) if "accuracy" in r), [])
    clients = [k for k, count in updates.items() for _ in range(count)]
    trained_sets = {frozenset(r["trained"]) for r in rounds}
    whole = {s for s in trained_sets if min_coverage(family, [int(k) for k in s]) > 0}
    return {
        "accuracy": accuracy,
        "worst": accuracy[0] if accuracy else None,
        "average": _mean(accuracy) if accuracy else None,
        "best": max(accuracy, default=None),
        "rounds": state.round_number,
        "seconds": sum(r["wall_seconds"] for r in rounds),
        "bytes_down": sum(r["bytes_down"] for r in rounds),
        "bytes_up": sum(r["bytes_up"] for r in rounds),
        "failures": sum(len(r["failures"]) for r in rounds),
        "coverage": {
            "updates_by_submodel": updates,
            "fewest_updates_of_an_element": min_coverage(family, clients),
            "rounds_that_covered_every_element": sum(
                frozenset(r["trained"]) in whole for r in rounds
            ),
        },
        "simulated": _simulated(rounds),
        "state_sha256": state_sha256(state),
    }


def _numbers(family: Family) -> range:
    return range(1, len(family) + 1)


def _simulated(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Return simulated seconds over all rounds, and how many clients took part on average."""
    times = [r["simulated"] for r in rounds if r.get("simulated")]
    if not times:
        return None
    totals = {f"{key}_seconds": sum(t[key] for t in times) for key in ("nested", "full")}
    totals["strong_only_seconds"] = sum(t["strong_only"] for t in times)
    totals["rounds_without_strong_clients"] = sum(not t["strong_clients"] for t in times)
    totals["strong_clients_per_round"] = _mean([t["strong_clients"] for t in times])
    totals["sat_out_per_round"] = _mean([t["sat_out"] for t in times])
    return totals
