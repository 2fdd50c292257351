"""Tables: telling rows apart, or foretelling a number."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nefl.data.columns import Dataset
from nefl.data.tables import CLIENT, FEATURES, TARGET
from nefl.nesting.signature import Signature
from nefl.tasks.task import Rows, Task

CLASSES, NUMBERS = "table-classification", "table-regression"


@dataclass(frozen=True, eq=False)
class Standardised:
    """A column, less its mean and over its deviation."""

    column: str
    mean: Tensor
    std: Tensor

    def __call__(self, rows: Rows, generator: torch.Generator | None = None) -> Tensor:  # noqa: ARG002
        """Return float32."""
        values = rows[self.column].to(torch.float32)
        return (values - self.mean.to(values.device)) / self.std.to(values.device)


def table_task(data: Dataset) -> Task:
    """Return the task of a table: its classes, or its numbers where it names no classes.

    Numbers are learned in units of their deviation; errors are told in those units too.
    """
    names = tuple(data.facts["class_names"])
    mean, std = (torch.tensor(data.facts[key], dtype=torch.float32) for key in ("mean", "std"))
    inputs = Standardised(FEATURES, mean, std)
    features = data.train[FEATURES].shape[1]
    owner = CLIENT if CLIENT in data.train else None
    common = {"folder": data.folder, "checksums": data.checksums, "owner": owner}
    facts = dict(data.facts)
    if names:
        return Task(
            data.name,
            data.train,
            data.test,
            Signature((features,), len(names)),
            inputs,
            TARGET,
            "cross-entropy",
            ("accuracy", "f1"),
            kind=CLASSES,
            labels=TARGET,
            class_names=names,
            facts=facts,
            **common,  # type: ignore[arg-type]
        )
    center = torch.tensor(np.float32(data.facts["target_mean"]))
    scale = torch.tensor(np.float32(data.facts["target_std"]))
    return Task(
        data.name,
        data.train,
        data.test,
        Signature((features,), 1),
        inputs,
        Standardised(TARGET, center, scale),
        "squared-error",
        ("mae", "rmse", "r2"),
        kind=NUMBERS,
        facts=facts,
        **common,  # type: ignore[arg-type]
    )
