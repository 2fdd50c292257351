"""Measuring submodels on the test set."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from nefl.nesting.modules import has_static_norms, measuring_norms
from nefl.nesting.spec import Family
from nefl.state import Evaluation

CHUNK = 1000
"""Test examples in one piece of work; small enough to share out among workers."""

BATCH = 250
"""Test examples in one forward pass."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an evaluation: a submodel and a range of test examples."""

    submodel: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Score:
    """What a chunk yielded: examples, how many were right, and the sum of their losses."""

    examples: int
    correct: int
    loss: float


def needs_measuring(family: Family, *, recalibrate: bool) -> bool:
    """Whether norms are measured over training data before a submodel is scored.

    Static norms must be; tracked ones only where recalibration is asked for.
    """
    return recalibrate or has_static_norms(family.meta_module(len(family)))


def make_chunks(submodels: Iterable[int], examples: int, *, whole: bool) -> list[Chunk]:
    """Cut the evaluation of submodels into pieces, the largest submodels first.

    Args:
        submodels: what is evaluated.
        examples: how many test examples there are.
        whole: whether a submodel is scored in one piece; where its norms are measured first, that
            is then done once.
    """
    pieces = 1 if whole else -(-examples // CHUNK)
    edges = [examples * piece // pieces for piece in range(pieces + 1)]
    return [
        Chunk(submodel, start, stop)
        for submodel in sorted(submodels, reverse=True)
        for start, stop in pairwise(edges)
    ]


def measure_norms(
    model: nn.Module, batches: Iterable[Tensor], memory_format: torch.memory_format
) -> None:
    """Let a model's norms take their statistics from batches of inputs."""
    model.eval()
    with torch.inference_mode(), measuring_norms(model):
        for batch in batches:
            model(batch.contiguous(memory_format=memory_format))


def score_chunk(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    transform: Callable[[Tensor, None], Tensor],
    memory_format: torch.memory_format,
) -> Score:
    """Count what a model gets right; uint8 images [N, C, H, W] and int64 labels [N]."""
    correct, loss = 0, 0.0
    model.eval()
    with torch.inference_mode():
        pieces = -(-len(labels) // BATCH)  # of even size: never a batch of one beside others
        for batch, truth in zip(
            torch.tensor_split(images, pieces), torch.tensor_split(labels, pieces), strict=True
        ):
            logits = model(transform(batch, None).contiguous(memory_format=memory_format))
            correct += int((logits.argmax(1) == truth).sum())
            loss += float(functional.cross_entropy(logits, truth, reduction="sum"))
    return Score(len(labels), correct, loss)


def mean_accuracy(evaluations: Sequence[Evaluation]) -> float:
    """Return the mean accuracy over submodels, the paper's average."""
    return sum(e.accuracy for e in evaluations) / len(evaluations)


def combine(chunks: Iterable[Chunk], scores: Iterable[Score]) -> list[Evaluation]:
    """Put the pieces together, one evaluation a submodel, smallest first."""
    sums: dict[int, list[Score]] = {}
    for chunk, score in zip(chunks, scores, strict=True):
        sums.setdefault(chunk.submodel, []).append(score)
    return [
        Evaluation(
            submodel,
            sum(score.correct for score in parts) / sum(score.examples for score in parts),
            sum(score.loss for score in parts) / sum(score.examples for score in parts),
        )
        for submodel, parts in sorted(sums.items())
    ]
