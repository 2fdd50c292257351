"""Rows of a table and series of numbers: telling them apart, or foretelling a number."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nefl.data.columns import Dataset
from nefl.data.tables import CLIENT, FEATURES, TARGET
from nefl.nesting.signature import Signature
from nefl.tasks.task import Rows, Task


@dataclass(frozen=True, eq=False)
class Standardised:
    """A column less its mean, over its deviation; both have the shape of one example, or fit it."""

    column: str
    mean: Tensor
    std: Tensor

    def __call__(self, rows: Rows, generator: torch.Generator | None = None) -> Tensor:  # noqa: ARG002
        """Return float32."""
        values = rows[self.column]
        if values.dtype != torch.float64:  # in which neighbouring dates are still apart
            values = values.to(torch.float32)
        return ((values - self.mean.to(values)) / self.std.to(values)).to(torch.float32)


@dataclass(frozen=True)
class InUnits:
    """From standardised numbers back to the target's own units."""

    mean: float
    std: float

    def __call__(self, values: Tensor) -> Tensor:
        """Return the numbers as people know them."""
        return values.double() * self.std + self.mean


def table_task(data: Dataset) -> Task:
    """Return the task of a table's rows."""
    return number_task(data, FEATURES, "table")


def number_task(data: Dataset, column: str, what: str) -> Task:
    """Return the task of examples made of numbers: their class, or a number where none are named.

    Numbers are learned in units of their deviation, and measured in their own.

    Args:
        data: the examples.
        column: what models get of them; its second axis is what facts tell means of.
        what: the first word of the task's kind.
    """
    facts = dict(data.facts)
    shape = tuple(data.train[column].shape[1:])
    fitting = (len(facts["mean"]),) + (1,) * (len(shape) - 1)
    mean, std = (torch.tensor(facts[k], dtype=torch.float64).view(fitting) for k in ("mean", "std"))
    names = tuple(facts["class_names"])
    shared: dict[str, Any] = {
        "name": data.name,
        "train": data.train,
        "test": data.test,
        "signature": Signature(shape, len(names) or 1),
        "inputs": Standardised(column, mean, std),
        "owner": CLIENT if CLIENT in data.train else None,
        "facts": facts,
        "folder": data.folder,
        "checksums": data.checksums,
    }
    if names:
        return Task(
            **shared,
            target=TARGET,
            loss="cross-entropy",
            metrics=("accuracy", "f1"),
            kind=f"{what}-classification",
            labels=TARGET,
            class_names=names,
        )
    center, scale = float(facts["target_mean"]), float(facts["target_std"])
    units = [torch.tensor(each, dtype=torch.float64) for each in (center, scale)]
    return Task(
        **shared,
        target=Standardised(TARGET, *units),
        loss="squared-error",
        metrics=("mae", "rmse", "r2"),
        restore=InUnits(center, scale),
        kind=f"{what}-regression",
    )
