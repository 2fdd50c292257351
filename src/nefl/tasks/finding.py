"""From a configuration to a task: which examples, and what is learned from them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from nefl.config.run import AUTO, GIVEN, IMAGES, RunConfig
from nefl.data.columns import Dataset, Examples
from nefl.data.datasets import cache_examples, load_dataset
from nefl.data.readers import NEXT, READERS, SERIES, TABLE, TEXT
from nefl.errors import ConfigError
from nefl.files import default_cache
from nefl.own_code import call_own
from nefl.references import import_function, is_reference
from nefl.tasks.given import find_given, open_given
from nefl.tasks.images import image_task
from nefl.tasks.series import series_task
from nefl.tasks.tables import table_task
from nefl.tasks.task import Task
from nefl.tasks.texts import next_token_task, text_task

TASKS: Mapping[str, Callable[[RunConfig, Dataset], Task]] = {
    IMAGES: image_task,
    TABLE: lambda _config, data: table_task(data),
    SERIES: lambda _config, data: series_task(data),
    TEXT: lambda _config, data: text_task(data),
    NEXT: lambda _config, data: next_token_task(data),
}
"""What can be learned, by name."""


def load_task(config: RunConfig, *, verify: bool = True) -> Task:
    """Return the task of a run, its examples read or mapped from the cache.

    Args:
        config: the run.
        verify: whether to compare the checksums of cached examples.

    Raises:
        NeflError: if there is no such task, or its examples cannot be had.
    """
    if config.task == GIVEN:
        cache = default_cache() if config.data.cache is None else Path(config.data.cache)
        return open_task(config, find_given(config, cache, verify=verify))
    if is_reference(config.task):
        return _cached(_own_task(config), config, verify)
    data = config.data
    dataset = load_dataset(
        data.name,
        root=data.root,
        cache=data.cache,
        verify=verify,
        options=dict(data.options),
        learn=learned(config),
    )
    return task_of(config, dataset)


def open_task(config: RunConfig, dataset: Dataset) -> Task:
    """Return the task of a run over examples that were cached before."""
    if config.task == GIVEN:
        return _measuring(open_given(dataset), config)
    if is_reference(config.task):
        return _measuring(_own_task(config).with_data(dataset), config)
    return task_of(config, dataset)


def task_of(config: RunConfig, dataset: Dataset) -> Task:
    """Return what a run learns from a data set."""
    return _measuring(TASKS[learned(config)](config, dataset), config)


def learned(config: RunConfig) -> str:
    """Return the name of what a run learns: what it says, else what its data set is for.

    Raises:
        ConfigError: if it is unknown, or cannot be learned from that data set.
    """
    reader = READERS.get(config.data.name)
    own = (IMAGES,) if reader is None else (reader.learns, *reader.also)
    if config.task == AUTO:
        return own[0]
    if config.task not in TASKS:
        raise ConfigError(
            f"task {config.task!r} is unknown; there are: {', '.join(TASKS)}, or give your own as "
            "package.module:function"
        )
    if config.task not in own:
        raise ConfigError(
            f"task {config.task}: data set {config.data.name!r} is for {' or '.join(own)}"
        )
    return config.task


def _own_task(config: RunConfig) -> Task:
    made = call_own(config.task, import_function(config.task), dict(config.data.options))
    if not isinstance(made, Task):
        raise ConfigError(f"{config.task}: returned {type(made).__name__}, expected a nefl.Task")
    return made


def _cached(task: Task, config: RunConfig, verify: bool) -> Task:
    """Put a task's examples into the cache, from which every process maps them."""
    examples = Examples(task.train, task.test, {})
    dataset = cache_examples(config.task, examples, config.data.cache, verify=verify)
    return _measuring(task.with_data(dataset), config)


def _measuring(task: Task, config: RunConfig) -> Task:
    return replace(task, metrics=config.metrics) if config.metrics else task
