"""A task of one's own: how far a disease will go, as a range that holds in eight cases of ten.

    python examples/own_task.py

Columns, inputs, loss and metrics are the user's; the model, the method and all else are nefl's.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor

import nefl

QUANTILES = torch.tensor([0.1, 0.9])


def pinball(ranges: Tensor, truth: Tensor) -> Tensor:
    """Return the mean pinball loss of [N, 2] quantiles."""
    over = truth[:, None] - ranges
    return torch.maximum(QUANTILES * over, (QUANTILES - 1) * over).mean()


def pinball_sums(ranges: Tensor, truth: Tensor) -> Tensor:
    """Return the sum of losses and the number of examples."""
    return torch.tensor([pinball(ranges, truth) * len(truth), len(truth)])


def covered_sums(ranges: Tensor, truth: Tensor) -> Tensor:
    """Return how many truths lie in their range, and the number of examples."""
    return torch.tensor([((ranges[:, 0] <= truth) & (truth <= ranges[:, 1])).sum(), len(truth)])


def ranges() -> nefl.Task:
    """Return the task; a recipe names it as `task = "own_task:ranges"`."""
    features, target = load_diabetes(return_X_y=True)
    columns = {"patient": features / features.std(0), "progress": target / target.std()}
    return nefl.Task(
        "diabetes-ranges",
        train={name: column[:350] for name, column in columns.items()},
        test={name: column[350:] for name, column in columns.items()},
        signature=nefl.Signature(input_shape=(10,), outputs=2),
        inputs="patient",
        target="progress",
        loss=pinball,
        metrics=(
            nefl.Metric("pinball", "down", pinball_sums, lambda sums: sums[0] / sums[1]),
            nefl.Metric("covered", "up", covered_sums, lambda sums: sums[0] / sums[1]),
        ),
    )


if __name__ == "__main__":
    settings = {"task": "own_task:ranges", "model": {"name": "mlp"}, "rounds": 20}
    clients = {"clients": {"count": 10, "per_round": 5}, "local": {"learning_rate": 0.02}}
    with TemporaryDirectory() as folder:
        print(nefl.train(settings | clients, Path(folder) / "run").summary["metrics"])
