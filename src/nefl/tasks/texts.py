"""Texts: the next token, or the class of a text."""

import torch
from torch import Tensor

from nefl.data.columns import Dataset
from nefl.data.texts import CLIENT, LABEL, TOKENS
from nefl.nesting.signature import Signature
from nefl.tasks.task import Rows, Task

NEXT, CLASSES = "next-token", "text-classification"


def _all_but_last(rows: Rows, generator: torch.Generator | None) -> Tensor:  # noqa: ARG001
    return rows[TOKENS][:, :-1].long()


def _all_but_first(rows: Rows) -> Tensor:
    return rows[TOKENS][:, 1:].long()


def _all(rows: Rows, generator: torch.Generator | None) -> Tensor:  # noqa: ARG001
    return rows[TOKENS].long()


def next_token_task(data: Dataset) -> Task:
    """Return the task of foretelling every token from those before it."""
    vocabulary, length = int(data.facts["vocabulary"]), int(data.facts["length"])
    owned = CLIENT in data.train and len(data.facts.get("owners", ())) > 0
    return Task(
        data.name,
        data.train,
        data.test,
        Signature((length,), vocabulary, tokens=vocabulary, each_token=True),
        _all_but_last,
        _all_but_first,
        "cross-entropy",
        ("perplexity", "accuracy"),
        kind=NEXT,
        owner=CLIENT if owned else None,
        facts=dict(data.facts),
        folder=data.folder,
        checksums=data.checksums,
    )


def text_task(data: Dataset) -> Task:
    """Return the task of telling texts apart."""
    names = tuple(data.facts["class_names"])
    vocabulary, length = int(data.facts["vocabulary"]), int(data.facts["length"])
    return Task(
        data.name,
        data.train,
        data.test,
        Signature((length,), len(names), tokens=vocabulary, padding=data.facts["padding"]),
        _all,
        LABEL,
        "cross-entropy",
        ("accuracy", "f1"),
        kind=CLASSES,
        labels=LABEL,
        class_names=names,
        owner=CLIENT if CLIENT in data.train else None,
        facts=dict(data.facts),
        folder=data.folder,
        checksums=data.checksums,
    )
