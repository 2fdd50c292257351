"""A task: what is learned from which examples, how a batch is made, and what is measured.

Nothing else in nefl knows what examples are. It takes rows of a task's columns, asks the task to
make a batch of them, and minimises the task's loss; in the end it asks for the task's metrics.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nefl.data.columns import Columns, Dataset, count_rows
from nefl.errors import ConfigError, DataError
from nefl.nesting.signature import Signature
from nefl.tasks.losses import LOSSES, TaskLoss
from nefl.tasks.metrics import Metric, find_metric
from nefl.wording import counted

TAKEN = frozenset(
    (
        *("metric", "metrics", "worst", "average", "best", "rounds", "seconds", "bytes_down"),
        *("bytes_up", "failures", "coverage", "state_sha256", "loss"),
    )
)
"""What summaries and evaluations call other things."""

Rows = Mapping[str, Tensor]
"""Some rows of every column."""

MakeInputs = Callable[[Rows, torch.Generator | None], Tensor]
"""From rows to a model's inputs; with a generator in training, which augmentation draws from."""


@dataclass(frozen=True, eq=False)
class Task:
    """What is learned.

    Attributes:
        name: what the examples are called, in tables and figures.
        train: the training examples, by column; every column has a row for each example.
        test: the test examples, likewise.
        signature: what a model takes and gives.
        inputs: the column that models get, or a function that makes their inputs out of rows. It
            is given a generator in training, None otherwise.
        target: the column of what is to be learned, or a function of rows.
        loss: the mean loss of a batch's outputs: a name (`cross-entropy`, `squared-error`,
            `absolute-error`) or a function of outputs and targets.
        metrics: what is measured, by name, by reference or as `Metric`s; the first is what
            "worst", "average" and "best" speak of.
        restore: from outputs and targets as they are learned to those that metrics speak of, where
            they differ: numbers in their own units, say.
        kind: what sort of task it is, such as `image-classification`.
        labels: the column of classes, by which partitions may be unequal and subsets even.
        class_names: what the classes are called, position = label.
        owner: the column that says whose an example is, which a partition may follow.
        arguments: what a user's own model function is called with; `input_shape` and `outputs`
            if left out.
        facts: what an exported file must know to make inputs and read outputs; plain values.
        folder: where the columns are cached, from which other processes map them.
        checksums: of every cached column, by its file's name.
    """

    name: str
    train: Columns
    test: Columns
    signature: Signature
    inputs: str | MakeInputs
    target: str | Callable[[Rows], Tensor]
    loss: str | TaskLoss
    metrics: Sequence[str | Metric]
    restore: Callable[[Tensor], Tensor] | None = None
    kind: str = "own"
    labels: str | None = None
    class_names: tuple[str, ...] = ()
    owner: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a task that cannot be learned, naming what is missing."""
        for part in ("train", "test"):
            columns = {k: _as_array(v, k, self.name) for k, v in getattr(self, part).items()}
            object.__setattr__(self, part, columns)
            count_rows(columns, f"task {self.name}: {part}")
        if self.train.keys() != self.test.keys():
            apart = sorted(self.train.keys() ^ self.test.keys())
            raise DataError(f"task {self.name}: train and test differ in columns {apart}")
        named = {"inputs": self.inputs, "target": self.target, "labels": self.labels}
        for what, column in (named | {"owner": self.owner}).items():
            if isinstance(column, str) and column not in self.train:
                raise ConfigError(
                    f"task {self.name}: {what} is column {column!r}; there are "
                    f"{', '.join(self.train)}"
                )
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            raise ConfigError(
                f"task {self.name}: loss {self.loss!r} is unknown; there are "
                f"{', '.join(LOSSES)}, or give a function"
            )
        if not self.metrics:
            raise ConfigError(f"task {self.name}: name a metric or more, the most important first")
        listed = (self.metrics,) if isinstance(self.metrics, str | Metric) else self.metrics
        found = tuple(m if isinstance(m, Metric) else find_metric(m) for m in listed)
        if self.labels is not None:
            self._check_labels(self.labels)
        _check_names([metric.name for metric in found], self.name)
        _check_plain({"facts": self.facts, "arguments": self.arguments}, self.name)
        object.__setattr__(self, "metrics", found)

    def _check_labels(self, column: str) -> None:
        for part in ("train", "test"):
            labels = getattr(self, part)[column]
            if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
                raise DataError(
                    f"task {self.name}: {part} labels {column!r} are {labels.dtype} of shape "
                    f"{labels.shape}; expected a whole number for each example"
                )
            low, high = int(labels.min()), int(labels.max())
            if low < 0 or high >= len(self.class_names):
                raise DataError(
                    f"task {self.name}: {part} labels {column!r} go from {low} to {high}; "
                    f"class_names has {counted(len(self.class_names), 'name')}, one for each"
                )

    @property
    def measured(self) -> tuple[Metric, ...]:
        """What is measured, the most important first."""
        return tuple(m if isinstance(m, Metric) else find_metric(m) for m in self.metrics)

    @property
    def primary(self) -> Metric:
        """What "worst", "average" and "best" speak of."""
        return self.measured[0]

    @property
    def train_examples(self) -> int:
        """How many training examples there are."""
        return count_rows(self.train, self.name)

    @property
    def test_examples(self) -> int:
        """How many test examples there are."""
        return count_rows(self.test, self.name)

    @property
    def classes(self) -> int:
        """How many classes there are; 0 where there are none."""
        return len(self.class_names)

    @property
    def gives_logits(self) -> bool:
        """Whether outputs are logits of classes or tokens, not numbers to foretell."""
        return self.loss == "cross-entropy" or (self.classes > 0 and self.signature.outputs > 1)

    def visible(self, columns: Columns) -> Columns:
        """Return the columns that batches are made of: whose an example is, nobody learns."""
        return {name: column for name, column in columns.items() if name != self.owner}

    def train_labels(self) -> npt.NDArray[np.int64] | None:
        """Return the class of every training example, where there are classes."""
        return None if self.labels is None else np.asarray(self.train[self.labels])

    def test_labels(self) -> npt.NDArray[np.int64] | None:
        """Return the class of every test example, where there are classes."""
        return None if self.labels is None else np.asarray(self.test[self.labels])

    def make_inputs(self, rows: Rows, generator: torch.Generator | None = None) -> Tensor:
        """Return a model's inputs for rows of examples."""
        if isinstance(self.inputs, str):
            return _as_inputs(rows[self.inputs], tokens=bool(self.signature.tokens))
        return self.inputs(rows, generator)

    def make_target(self, rows: Rows) -> Tensor:
        """Return what a model's outputs for rows of examples are compared with."""
        if isinstance(self.target, str):
            column = rows[self.target]
            return column.float() if column.is_floating_point() else column.long()
        return self.target(rows)

    def loss_of(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        loss = LOSSES[self.loss] if isinstance(self.loss, str) else self.loss
        return loss(outputs, target)

    def measure(self, metric: Metric, outputs: Tensor, target: Tensor) -> list[float]:
        """Return a metric's sums for a batch."""
        if self.restore is not None:
            outputs, target = self.restore(outputs), self.restore(target)
        return [float(value) for value in metric.sums(outputs, target).tolist()]

    def model_arguments(self) -> dict[str, Any]:
        """Return what a user's own model function is called with."""
        plain = {"outputs": self.signature.outputs, "input_shape": self.signature.input_shape}
        return dict(self.arguments) or plain

    def with_data(self, data: Dataset) -> "Task":
        """Return the task over other examples of the same kind, such as the cached ones."""
        return replace(
            self, train=data.train, test=data.test, folder=data.folder, checksums=data.checksums
        )


def _as_array(values: Any, column: str, task: str) -> npt.NDArray[Any]:
    """Return a column as an array; tensors and lists will do."""
    if isinstance(values, np.ndarray):
        return values
    array = np.asarray(values)
    if array.dtype.hasobject or array.dtype.kind in "US":
        raise DataError(
            f"task {task}: column {column!r} holds {type(values).__name__} of {array.dtype}; "
            "expected numbers in a numpy array"
        )
    return array


def _check_names(metrics: Sequence[str], task: str) -> None:
    for name in metrics:
        if metrics.count(name) > 1:
            raise ConfigError(f"task {task}: two metrics are called {name!r}; rename one")
        if name in TAKEN:
            raise ConfigError(f"task {task}: a metric cannot be called {name!r}; summaries do so")


def _check_plain(given: Mapping[str, Mapping[str, Any]], task: str) -> None:
    for what, values in given.items():
        for key, value in values.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"task {task}: {what}[{key!r}] is no plain value ({error}); files and other "
                    "processes need numbers, texts, and lists or mappings of them"
                ) from None


def rows_of(columns: Columns, chosen: npt.NDArray[np.int64]) -> dict[str, Tensor]:
    """Return some rows of every column, as tensors on the CPU."""
    return {name: torch.from_numpy(column[chosen]) for name, column in columns.items()}


def _as_inputs(column: Tensor, *, tokens: bool) -> Tensor:
    """Return a column in the dtype of inputs: any numbers in float32, tokens in int64."""
    return column.long() if tokens else column.float()


def arranged(inputs: Tensor, memory_format: torch.memory_format) -> Tensor:
    """Return inputs as they shall lie in memory; that is a matter of images alone."""
    return inputs.contiguous(memory_format=memory_format) if inputs.ndim == 4 else inputs
