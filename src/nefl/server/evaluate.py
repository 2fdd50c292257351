"""Measuring submodels on the test set."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from nefl.moving import fetched
from nefl.nesting.modules import has_static_norms, measuring_norms
from nefl.nesting.spec import Family
from nefl.state import Evaluation
from nefl.tasks.metrics import Metric
from nefl.tasks.task import Rows, Task, arranged

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
    """What a chunk yielded.

    Attributes:
        examples: how many there were.
        loss: the sum of their losses.
        sums: the sums of each metric, by its name.
    """

    examples: int
    loss: float
    sums: Mapping[str, Sequence[float]]


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
            model(arranged(batch, memory_format))


def score_chunk(
    model: nn.Module, rows: Rows, task: Task, memory_format: torch.memory_format
) -> Score:
    """Measure a model on some examples."""
    examples = len(next(iter(rows.values())))
    loss = 0.0
    sums: dict[str, list[float]] = {metric.name: [] for metric in task.measured}
    model.eval()
    with torch.inference_mode():
        pieces = -(-examples // BATCH)  # of even size: never a batch of one beside others
        for some in fetched(_pieces(rows, pieces), next(model.parameters()).device):
            outputs = model(arranged(task.make_inputs(some), memory_format))
            target = task.make_target(some)
            loss += float(task.loss_of(outputs, target)) * len(target)
            for metric in task.measured:
                found = task.measure(metric, outputs, target)
                before = sums[metric.name] or [0.0] * len(found)
                sums[metric.name] = [a + b for a, b in zip(before, found, strict=True)]
    return Score(examples, loss, sums)


def _pieces(rows: Rows, pieces: int) -> Iterable[dict[str, Tensor]]:
    split = {name: torch.tensor_split(values, pieces) for name, values in rows.items()}
    for piece in range(pieces):
        yield {name: parts[piece] for name, parts in split.items()}


def told(evaluations: Sequence[Evaluation]) -> str:
    """Say the most important metric in a line: its mean over submodels, and each."""
    name = next(iter(evaluations[0].values))
    each = " ".join(f"{e.values[name]:.3f}" for e in evaluations)
    return f"{name} {mean_of(evaluations, name):.4f} ({each})"


def mean_of(evaluations: Sequence[Evaluation], metric: str) -> float:
    """Return the mean of a metric over submodels, the paper's average."""
    return sum(e.values[metric] for e in evaluations) / len(evaluations)


def combine(
    chunks: Iterable[Chunk], scores: Iterable[Score], metrics: Sequence[Metric]
) -> list[Evaluation]:
    """Put the pieces together, one evaluation a submodel, smallest first."""
    by_submodel: dict[int, list[Score]] = {}
    for chunk, score in zip(chunks, scores, strict=True):
        by_submodel.setdefault(chunk.submodel, []).append(score)
    return [
        Evaluation(
            submodel,
            {metric.name: metric.value(_added(parts, metric)) for metric in metrics},
            sum(score.loss for score in parts) / sum(score.examples for score in parts),
        )
        for submodel, parts in sorted(by_submodel.items())
    ]


def _added(parts: Sequence[Score], metric: Metric) -> list[float]:
    return [sum(column) for column in zip(*(p.sums[metric.name] for p in parts), strict=True)]
