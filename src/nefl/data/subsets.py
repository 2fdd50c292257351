"""Seeded, class-stratified choices of examples, by index."""

from dataclasses import dataclass

import numpy as np

from nefl.data.arrays import ImageDataset, Labels
from nefl.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Subset:
    """Which examples of a data set take part; the arrays themselves stay where they are.

    Attributes:
        train: sorted int64 positions in `dataset.train`.
        test: sorted int64 positions in `dataset.test`.
    """

    train: Labels
    test: Labels


def subset(dataset: ImageDataset, train: int | None, test: int | None, seed: int) -> Subset:
    """Choose a class-stratified part of each split.

    Args:
        dataset: the data set, only its labels are read.
        train: number of training examples, None for all.
        test: number of test examples, None for all.
        seed: the same seed gives the same choice.

    Raises:
        ConfigError: more examples than there are, or none.
    """
    return Subset(
        _part(dataset.train.labels, train, seed, 0, f"{dataset.name} train"),
        _part(dataset.test.labels, test, seed, 1, f"{dataset.name} test"),
    )


def _part(labels: Labels, count: int | None, seed: int, stream: int, what: str) -> Labels:
    if count is None:
        return np.arange(len(labels), dtype=np.int64)
    if not 1 <= count <= len(labels):
        raise ConfigError(
            f"{what}: a subset of {count} out of {len(labels)} examples; choose fewer"
        )
    return choose_stratified(labels, count, np.random.default_rng([seed, stream]))


def choose_stratified(labels: Labels, count: int, rng: np.random.Generator) -> Labels:
    """Draw `count` positions so that every class keeps its share, rounded by largest remainder."""
    sizes = np.bincount(labels)
    exact = sizes * (count / len(labels))
    quotas = np.floor(exact).astype(np.int64)
    # Stable, so that equal remainders go to the lower class on every machine.
    order = np.argsort(quotas - exact, kind="stable")
    quotas[order[: count - int(quotas.sum())]] += 1
    chosen = [
        rng.permutation(np.flatnonzero(labels == label))[:quota]
        for label, quota in enumerate(quotas.tolist())
    ]
    return np.sort(np.concatenate(chosen)).astype(np.int64)
