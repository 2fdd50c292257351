"""Tasks that are given in memory: kept in the cache, so that other processes can take them up.

A task whose parts are columns and names is described beside its columns, and is found again by
their checksum. Functions cannot be: such a task stays in its process, and whoever goes on with its
run gives it again.
"""

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nefl.config.run import GIVEN, RunConfig
from nefl.data.cache import open_cached
from nefl.data.columns import Dataset, Examples
from nefl.data.datasets import cache_examples
from nefl.errors import ConfigError, DataError
from nefl.nesting.signature import Signature
from nefl.tasks.metrics import METRICS
from nefl.tasks.task import Task

FOLDER, DESCRIPTION = "folder", "task"

_PLAIN = ("inputs", "target", "loss", "kind", "labels", "class_names", "owner", "arguments")


def keep_given(config: RunConfig, task: Task) -> tuple[RunConfig, Task]:
    """Put a task's examples into the cache; return a configuration by which they are found.

    Raises:
        ConfigError: if the configuration names a task or data of its own.
        DataError: if the cache cannot be written.
    """
    if not isinstance(task, Task):
        raise ConfigError(f"task: {type(task).__name__} is none; give a nefl.Task")
    if config.task == "auto" and (config.data.root is not None or config.data.options):
        raise ConfigError(
            "data.root and data.options: the run is given its examples; leave them out"
        )
    if config.task not in ("auto", GIVEN):
        raise ConfigError(f"task: the run is given one, and its settings name {config.task}")
    if config.metrics:
        task = replace(task, metrics=config.metrics)
    facts = {**task.facts, DESCRIPTION: describe(task)}
    examples = Examples(task.train, task.test, facts)
    dataset = cache_examples(f"{GIVEN}-{task.name}", examples, config.data.cache, verify=True)
    data = replace(config.data, name=task.name, options={FOLDER: _name_of(dataset)})
    kept = replace(config, task=GIVEN, data=data)
    return kept, task.with_data(dataset)


def _name_of(dataset: Dataset) -> str:
    return "" if dataset.folder is None else dataset.folder.name


def find_given(config: RunConfig, cache: Path, *, verify: bool) -> Dataset:
    """Return the examples that a run was given, from the cache.

    Raises:
        DataError: if they are no longer there.
    """
    name = str(config.data.options.get(FOLDER, ""))
    folder = cache / name
    if not name or Path(name).name != name or not folder.is_dir():
        raise DataError(
            f"the examples of this run were given in memory, and {folder} does not hold them; give "
            "the task again, as in nefl.resume(run, task=...)"
        )
    return open_cached(folder, verify=verify)


def open_given(dataset: Dataset) -> Task:
    """Return the task that stands beside its cached columns.

    Raises:
        ConfigError: if it has functions, which are in no file.
    """
    facts = dict(dataset.facts)
    told = facts.pop(DESCRIPTION, None)
    if not isinstance(told, Mapping):
        raise ConfigError(
            f"task {dataset.name}: was given in memory with functions of its own, which other "
            "processes and later ones do not have; give it again, as in nefl.resume(run, "
            "task=...), use the serial engine, or write it as a function and name it, as in "
            "task = 'package.module:function'"
        )
    values: dict[str, Any] = dict(told)
    values["signature"] = Signature.from_dict(values["signature"])
    values["class_names"] = tuple(values["class_names"])
    values["arguments"] = {k: _as_tuples(v) for k, v in values["arguments"].items()}
    return Task(
        train=dataset.train,
        test=dataset.test,
        facts=facts,
        folder=dataset.folder,
        checksums=dataset.checksums,
        **values,
    )


def _as_tuples(value: Any) -> Any:
    """Return a value with tuples where JSON has lists: shapes are tuples."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def code_of(task: Task) -> dict[str, str]:
    """Return checksums of a task's own functions, by the part that each is."""
    parts = {key: getattr(task, key) for key in ("inputs", "target", "loss", "restore")}
    for metric in task.measured:
        parts |= {f"{metric.name}.sums": metric.sums, f"{metric.name}.value": metric.value}
    return {key: _source_of(part) for key, part in parts.items() if callable(part)}


def _source_of(part: Any) -> str:
    code = part if inspect.isroutine(part) else type(part)
    try:
        source = inspect.getsource(code)
    except (OSError, TypeError):  # typed into a shell, or built in
        source = getattr(code, "__qualname__", "")
    return hashlib.sha256(
        f"{source}{'' if inspect.isroutine(part) else part!r}".encode()
    ).hexdigest()


def describe(task: Task) -> dict[str, Any] | None:
    """Return a task as plain values; nothing if some of it is a function."""
    own = task.restore is not None or any(m is not METRICS.get(m.name) for m in task.measured)
    if own or callable(task.inputs) or callable(task.target) or callable(task.loss):
        return None
    values: dict[str, Any] = {key: getattr(task, key) for key in _PLAIN}
    return values | {
        "name": task.name,
        "signature": task.signature.to_dict(),
        "metrics": [metric.name for metric in task.measured],
        "class_names": list(task.class_names),
        "arguments": dict(task.arguments),
    }
