"""Which examples each client of a run has: the part of a task it takes, dealt out."""

import numpy as np
import numpy.typing as npt

from nefl.config import RunConfig
from nefl.data.partition import Partition, partition_clients
from nefl.data.subsets import Subset, choose_part
from nefl.errors import DataError
from nefl.tasks.task import Task


def subset(task: Task, config: RunConfig) -> Subset:
    """Return the examples of a task that a run takes.

    Raises:
        ConfigError: more examples than there are, or none.
    """
    data, seed, name = config.data, config.seed, task.name
    train = choose_part(
        task.train_examples, task.train_labels(), data.train, seed, 0, f"{name} train"
    )
    test = choose_part(task.test_examples, task.test_labels(), data.test, seed, 1, f"{name} test")
    return Subset(train, test)


def deal_examples(config: RunConfig, task: Task) -> tuple[Partition, int]:
    """Return the partition of a run, and how many test examples it takes.

    Raises:
        NeflError: if there are not enough examples for such a partition, or nothing to tell apart.
    """
    chosen = subset(task, config)
    labels = task.train_labels()
    if labels is not None and task.target == task.labels:
        _check_classes(task, np.unique(labels[chosen.train]))
    owners = None if task.owner is None else task.train[task.owner]
    dealt = partition_clients(
        None if labels is None else labels[chosen.train],
        config.clients.count,
        config.partition.kind,
        examples=len(chosen.train),
        owners=None if owners is None else owners[chosen.train],
        alpha=config.partition.alpha,
        classes_per_client=config.partition.classes_per_client,
        tiers=config.partition.tiers,
        path=config.partition.file,
        seed=config.seed,
        min_examples=config.partition.min_examples,
    )
    return Partition(chosen.train[dealt.indices], dealt.offsets), len(chosen.test)


def _check_classes(task: Task, found: npt.NDArray[np.int64]) -> None:
    """Refuse examples that are all of one class: a model would be right that learned nothing.

    Raises:
        DataError: naming the class.
    """
    if len(found) == 1:
        raise DataError(
            f"{task.name}: all training examples are of one class, {task.class_names[found[0]]!r}; "
            "give examples of two classes or more, or another column as the target"
        )
