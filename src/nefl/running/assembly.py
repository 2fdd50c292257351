"""What a run needs, made from its configuration and checked before anything starts."""

import hashlib
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nefl.artifacts.facts import MAX_COUNTS, Facts
from nefl.artifacts.identity import BASE, CODE, SETTINGS
from nefl.asking.ways import card_facts
from nefl.config import RunConfig
from nefl.config.learning import LORA
from nefl.config.run import GIVEN
from nefl.data import Examples, Partition, draw_label_distribution
from nefl.data.picture import draw_sizes
from nefl.data.sources import content_digest
from nefl.engines.device_clients import DeviceClients, check_device_clients
from nefl.engines.devices import (
    check_precision,
    pick_device,
    pick_devices,
    place_sums,
    place_workers,
)
from nefl.engines.memory_files import MemoryFiles
from nefl.engines.serial import SerialEngine
from nefl.engines.site import Site, pick_memory_format
from nefl.engines.stacking import check_together
from nefl.engines.waiting import WaitingWorkers
from nefl.engines.workers import WorkersEngine
from nefl.errors import ConfigError
from nefl.measured import MeasuredBy
from nefl.methods import (
    capability_levels,
    check_sets,
    family_of,
    method_of,
    method_reference,
)
from nefl.models.pretrained import start_from, weights_checksum
from nefl.models.table import MODELS
from nefl.nesting.inside import alone
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.spec import Family
from nefl.own_source import code_checksums
from nefl.references import is_reference, named_code, own_model
from nefl.rounds import Engine, Plan
from nefl.running.costs import Work, run_profiles
from nefl.running.small_first import check_small_first
from nefl.running.tryout import EXAMPLES, check_members, try_metrics, try_out
from nefl.server.averages import check_average
from nefl.server.cohort import CohortPlan
from nefl.server.devices import Fleet
from nefl.server.steps import find_step
from nefl.state import ServerState
from nefl.tasks.dealing import deal_examples
from nefl.tasks.finding import load_task
from nefl.tasks.given import code_of, describe, keep_given
from nefl.tasks.task import Task, rows_of


@dataclass(frozen=True, eq=False)
class Setting:
    """All that a run needs.

    Attributes:
        config: the run.
        family: its family.
        task: what it learns, from which examples.
        partition: which training examples each client has.
        test_examples: how many test examples are taken.
        plan: what stays the same in all rounds.
    """

    config: RunConfig
    family: Family
    task: Task
    partition: Partition
    test_examples: int
    plan: Plan

    @property
    def primary(self) -> MeasuredBy:
        """What "worst", "average" and "best" speak of, as a run's folder notes it."""
        return self._measured()[0]

    def _measured(self) -> tuple[MeasuredBy, ...]:
        return tuple(MeasuredBy(m.name, m.better, percent=m.percent) for m in self.task.measured)

    def site(self) -> Site:
        """Return a place to train in this process."""
        device = pick_device(self.config.engine.devices[0])
        return Site(self.config, self.family, self.task, self.partition, device)

    def workers(self) -> tuple[torch.device, ...]:
        """Return the device of each worker process; none means to train in this process.

        Raises:
            ConfigError: if the task cannot be given to workers that are asked for.
        """
        engine = self.config.engine
        found = place_workers(engine, self.config.clients.per_round)
        if not found or self.config.task != GIVEN or describe(self.task) is not None:
            return found
        if engine.name == "auto":
            return ()
        raise ConfigError(
            f"task {self.task.name}: has functions of its own, which workers cannot be given; "
            "set engine.name to 'serial', or write the task as a function and name it, as in "
            "task = 'package.module:function'"
        )

    def engine(self, partition: Path, waiting: WaitingWorkers | None = None) -> Engine:
        """Return the engine that the configuration asks for.

        Args:
            partition: the file in the run's folder that the partition was saved to.
            waiting: processes of workers that were started before, where there are any.

        Raises:
            ConfigError: if that engine cannot be had.
        """
        workers = self.workers()
        memories = MemoryFiles(partition.parent)
        if self.config.engine.client != "torch":  # else every worker would wait for them in turn
            ready = DeviceClients(self.config, self.family, self.task)
            ready.make_ready(range(1, len(self.family) + 1))
        if not workers:
            if waiting is not None:
                waiting.close()
            return SerialEngine(self.site(), self.family, memories, self.config.engine.together)
        return WorkersEngine(
            self.config,
            self.family,
            task=self.task,
            partition=partition,
            sizes=self.partition.sizes,
            test_examples=self.test_examples,
            devices=workers,
            memories=memories,
            processes=waiting or WaitingWorkers(),
        )

    def initial_state(self) -> ServerState:
        """Return the weights before the first round: fresh ones, or those of a given file.

        Raises:
            DataError: if that file cannot be read or does not fit the model.
        """
        state = self.family.initial_state(self.config.seed)
        weights = self.config.model.weights
        return state if weights is None else start_from(Path(weights), self.family, state)

    def identity(self) -> dict[str, Any]:
        """Return checksums of all that the result depends on; the engine is not among it."""
        weights = self.config.model.weights
        known = {} if weights is None else {"weights": weights_checksum(Path(weights))}
        code = self.code_identity()
        return {
            **known,
            SETTINGS: settings_checksum(self.config),
            **self.data_identity(),
            "model": self.family.fingerprint,
            **({CODE: code} if code else {}),
        }

    def code_identity(self) -> dict[str, str]:
        """Return checksums of the source of code that is not nefl's own, by module."""
        registered = method_reference(self.config.model.method)
        return code_checksums([*named_code(self.config), *filter(None, [registered])])

    def data_identity(self) -> dict[str, str]:
        """Return checksums of what the run is trained and measured on, a frozen base included."""
        task, base = self.task, self.family.base_checksum
        return {
            **({BASE: base} if base else {}),
            "data": _sha256(
                json.dumps([task.kind, task.facts, task.class_names], sort_keys=True),
                json.dumps(code_of(task), sort_keys=True) if self.config.task == GIVEN else "",
                content_digest(Examples(task.train, task.test))
                if task.folder is None
                else json.dumps(task.checksums, sort_keys=True),
            ),
            "partition": _sha256(
                self.partition.indices.tobytes(), self.partition.offsets.tobytes()
            ),
        }

    def facts(self) -> Facts:
        """Return what the run's folder shall say of its data, for reports."""
        task, clients = self.task, self.partition.clients
        counts: list[list[int]] = []
        labels = task.train_labels()
        if labels is not None and clients * task.classes <= MAX_COUNTS:
            counts = self.partition.label_counts(labels, task.classes).tolist()
        return Facts(
            class_names=task.class_names,
            signature=task.signature,
            kind=task.kind,
            metrics=self._measured(),
            train_examples=len(self.partition.indices),
            test_examples=self.test_examples,
            label_counts=tuple(map(tuple, counts)),
            submodels=self.profiles(),
            inputs=card_facts(task.kind, task.facts),
            arguments=task.model_arguments(),
        )

    def profiles(self) -> tuple[SubmodelProfile, ...]:
        """Return what the submodels cost in this run, smallest first."""
        return run_profiles(self.config, self.family, self.task.signature)

    def work(self) -> Work:
        """Return what tells the MACs of a round."""
        return Work(self.config, self.family, self.alone().profiles(), self.partition.sizes)

    def alone(self) -> "Setting":
        """Return the run without what is trained inside its submodels, to price or time them."""
        return replace(self, family=alone(self.family))

    def draw_partition(self) -> str:
        """Return a picture in text of how the classes spread over the clients."""
        labels = self.task.train_labels()
        if labels is None:
            return draw_sizes(self.partition)
        return draw_label_distribution(self.partition, labels, self.task.classes)


def settings_checksum(config: RunConfig) -> str:
    """Return a checksum of the settings that a result depends on."""
    settings = config.to_dict()
    engine = settings.pop("engine")
    if engine["client"] != "torch":  # other kernels sum in another order
        settings["engine"] = {key: engine[key] for key in ("client", "client_share")}
    for key in ("about", "published"):
        settings.pop(key)
    settings["data"].pop("cache")
    if settings["server"]["step"]["name"] == "mean":  # the same, where it may stand
        settings["server"]["step"]["name"] = "auto"
    settings["model"].pop("weights")  # what is in the file counts, not where it lies
    if config.model.name == LORA and not own_model(config.model):
        settings["model"]["options"].pop("base", None)  # the same
    return _sha256(json.dumps(_unusual(settings, RunConfig().to_dict()), sort_keys=True))


def _unusual(settings: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that are not defaults: a setting that is new in nefl changes no run."""
    return {
        key: _unusual(value, defaults[key]) if isinstance(value, dict) and defaults[key] else value
        for key, value in settings.items()
        if value != defaults.get(key)
    }


def _sha256(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()


def assemble(config: RunConfig, task: Task | None = None) -> Setting:
    """Load the data, deal it out and build the family.

    Args:
        config: the run.
        task: what it learns, where that is given in memory.

    Raises:
        NeflError: if any of it cannot be had.
    """
    check_devices(config)
    if task is None:
        return arrange(config, load_task(config))
    return arrange(*keep_given(config, task))


def check_devices(config: RunConfig) -> None:
    """See that the devices that a run asks for are here, and compute as it asks.

    Raises:
        ConfigError: naming what is not so.
    """
    place_sums(config.engine, ())
    check_precision(config.local.precision, pick_devices(config.engine.devices))


def arrange(config: RunConfig, task: Task) -> Setting:
    """Deal a task's examples out and build the family.

    Raises:
        NeflError: if any of it cannot be had.
    """
    family = family_of(config.model, task.signature, task.model_arguments())
    if config.model.members and config.model.name in MODELS:
        check_members(config.model, family, task.signature)
    method_of(config.model).objective.check(config.local)
    check_device_clients(config, family, pick_device(config.engine.devices[0]).type)
    check_together(config, family, task)
    if config.engine.programs is not None:
        DeviceClients(config, family, task).make_ready(range(1, len(family) + 1))
    own_task = is_reference(config.task) or config.task == GIVEN
    if own_task or own_model(config.model) or method_reference(config.model.method):
        _try_out(config, family, task)
    try_metrics(task)
    partition, tests = deal_examples(config, task)
    plan = _plan(config, family, partition, task)
    return Setting(config, family, task, partition, tests, plan)


def _plan(config: RunConfig, family: Family, partition: Partition, task: Task) -> Plan:
    fleet = None
    if config.clients.capability == "devices":
        profiles = run_profiles(config, family, task.signature)
        full = run_profiles(config, alone(family), task.signature)[-1] if family.within else None
        epochs, sizes = config.local.epochs, partition.sizes
        fleet = Fleet(config.clients, profiles, epochs, sizes, config.seed, full)
    levels, left_out = capability_levels(config.model, task.signature, task.model_arguments())
    cohort = CohortPlan(
        config.clients,
        len(family),
        config.seed,
        fleet,
        levels=levels,
        left_out=left_out,
        fewest=math.ceil(config.server.quorum * config.clients.per_round),
    )
    dealt = tuple(map(int, partition.sizes))
    method = method_of(config.model)
    receives, sends = method.objective.receives, method.objective.sends
    step = find_step(config.server, method.step, method=config.model.method, sends=sends)
    check_sets(method, step, config.model.method)
    check_small_first(config, method, len(family))
    plan = Plan(
        config, family, cohort, method.rolling, dealt, step, receives, sends, method.average
    )
    check_average(plan.server, family, step, sends)
    return plan


def _try_out(config: RunConfig, family: Family, task: Task) -> None:
    """Try a model, method or task of the user's own out on the data's first examples."""
    rows = rows_of(task.visible(task.train), np.arange(min(EXAMPLES, task.train_examples)))
    inputs = task.make_inputs(rows, torch.Generator().manual_seed(config.seed))
    device, asked = pick_device(config.engine.devices[0]), config.local.memory_format

    def layout(submodel: int) -> torch.memory_format:
        return pick_memory_format(asked, family, submodel, device)

    try_out(config.model, family, task, inputs, task.make_target(rows), layout)


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Let a run find its files from whatever folder it is resumed in."""

    def absolute(path: str | None) -> str | None:
        return str(Path(path).absolute()) if path and Path(path).exists() else path

    options = dict(config.data.options)
    for key in ("test_root", "tokenizer"):
        if isinstance(named := options.get(key), str):
            options[key] = absolute(named)
    root, cache = absolute(config.data.root), absolute(config.data.cache)
    data = replace(config.data, root=root, cache=cache, options=options)
    partition = replace(config.partition, file=absolute(config.partition.file))
    weights, start = absolute(config.model.weights), absolute(config.model.start)
    model = replace(config.model, weights=weights, start=start)
    if model.name == LORA and isinstance(base := model.options.get("base"), str):
        model = replace(model, options={**model.options, "base": absolute(base)})
    engine = replace(config.engine, programs=absolute(config.engine.programs))
    return replace(config, model=model, data=data, partition=partition, engine=engine)
