"""Seeded, class-stratified choices of examples, by index."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nefl.errors import ConfigError

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Subset:
    """Which examples of a data set take part; the arrays themselves stay where they are.

    Attributes:
        train: sorted int64 positions in the training part.
        test: sorted int64 positions in the test part.
    """

    train: Labels
    test: Labels


def choose_part(
    examples: int, labels: Labels | None, count: int | None, seed: int, stream: int, what: str
) -> Labels:
    """Choose a part of some examples; where they have classes, every class keeps its share.

    Args:
        examples: how many there are.
        labels: their classes, if they have any.
        count: how many to choose, None for all.
        seed: the same seed and stream give the same choice.
        stream: which of the choices that a seed makes this is.
        what: what the examples are called, for the error.

    Raises:
        ConfigError: more examples than there are, or none.
    """
    if count is None:
        return np.arange(examples, dtype=np.int64)
    if not 1 <= count <= examples:
        raise ConfigError(f"{what}: a subset of {count} out of {examples} examples; choose fewer")
    rng = np.random.default_rng([seed, stream])
    if labels is None:
        return np.sort(rng.permutation(examples)[:count]).astype(np.int64)
    return choose_stratified(labels, count, rng)


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
