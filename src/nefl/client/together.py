"""Clients of one submodel trained at once: their weights stacked, a step of all in one call.

Small models on a GPU leave most of it idle, and every call costs its start. Each client has its
own batches, statistics and gradient all the same; only the last bits differ from training them one
by one, since kernels for stacks sum in another order.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from nefl.client.optimiser import optimiser_of
from nefl.client.training import (
    LocalStep,
    LocalTraining,
    count_examples,
    count_steps,
    local_steps,
)
from nefl.nesting.frozen import frozen_names, learned_state
from nefl.seeds import Purpose, number_for
from nefl.state import ClientUpdate, TrainTask
from nefl.tasks.task import Rows

SMALL = 1e-6
"""What torch adds to a norm before it divides by it."""


def groups_of(
    tasks: Sequence[TrainTask], sizes: npt.NDArray[np.int64], most: int
) -> list[tuple[TrainTask, ...]]:
    """Divide tasks into those that are trained at once, in their order.

    Neighbours are, if they train the same submodel on equally many examples: their steps are alike.

    Args:
        tasks: a round's tasks.
        sizes: how many examples each client of the population has.
        most: how many may be trained at once.
    """
    groups: list[list[TrainTask]] = []
    for task in tasks:
        last = groups[-1][-1] if groups else None
        alike = last is not None and (last.submodel, sizes[last.client]) == (
            task.submodel,
            sizes[task.client],
        )
        if alike and len(groups[-1]) < most:
            groups[-1].append(task)
        else:
            groups.append([task])
    return [tuple(group) for group in groups]


def train_together(
    tasks: Sequence[TrainTask], model: nn.Module, rows: Sequence[Rows], how: LocalTraining
) -> list[ClientUpdate]:
    """Train a submodel on each of several clients' examples, from the same weights.

    Args:
        tasks: whose work this is, all of one round and submodel.
        model: the submodel, with the weights to start from; they stay as they are.
        rows: each client's examples, equally many.
        how: what all clients have in common; its objective is the task's loss alone.
    """
    examples = count_examples(rows[0])
    weights, statistics = _stacked(model, len(tasks))
    optimiser = optimiser_of(weights.values(), how.local)
    total_loss = torch.zeros(len(tasks), device=how.device)

    def loss_of(
        own: dict[str, Tensor], kept: dict[str, Tensor], inputs: Tensor, target: Tensor
    ) -> Tensor:
        outputs = functional_call(model, {**own, **kept}, (inputs,))
        return how.learned.loss_of(outputs, target)

    step_of_all = vmap(grad_and_value(loss_of))
    model.train()
    for steps in zip(*_steps(tasks, rows, how), strict=True):
        for group in optimiser.param_groups:
            group["lr"] = steps[0].learning_rate
        inputs = torch.stack([step.inputs for step in steps])
        target = torch.stack([step.target for step in steps])
        gradients, losses = step_of_all(weights, statistics, inputs, target)
        if how.clip_norm:
            _clip(gradients, how.clip_norm)
        for name, weight in weights.items():
            weight.grad = gradients[name]
        optimiser.step()
        total_loss += losses
    mean_loss = (total_loss / count_steps(examples, how.local)).tolist()
    trained = _by_client(model, weights, statistics, len(tasks))
    return [
        ClientUpdate(task, mine, examples, {"loss": loss})
        for task, mine, loss in zip(tasks, trained, mean_loss, strict=True)
    ]


def _steps(
    tasks: Sequence[TrainTask], rows: Sequence[Rows], how: LocalTraining
) -> list[Iterator[LocalStep]]:
    """Return each client's steps, with the random numbers that it has alone too."""
    seeds = [number_for(how.seed, Purpose.TRAINING, t.round_number, t.client) for t in tasks]
    return [
        local_steps(task, own, how, torch.Generator().manual_seed(seed))
        for task, own, seed in zip(tasks, rows, seeds, strict=True)
    ]


def _stacked(model: nn.Module, clients: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return what is trained and what is kept besides, a copy of each for every client."""

    def copies(tensor: Tensor) -> Tensor:
        return tensor.detach().expand(clients, *tensor.shape).clone()

    frozen = frozen_names(model)
    weights = {n: copies(p) for n, p in model.named_parameters() if p.requires_grad}
    buffers = {n: copies(b) for n, b in model.named_buffers() if n not in frozen}
    return weights, buffers


def _clip(gradients: Mapping[str, Tensor], largest: float) -> None:
    """Shorten each client's gradient as it would be alone."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
    factors = (largest / (norms + SMALL)).clamp(max=1.0)
    for gradient in gradients.values():
        gradient.mul_(factors.view(-1, *[1] * (gradient.ndim - 1)))


def _by_client(
    model: nn.Module, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor], clients: int
) -> list[dict[str, Tensor]]:
    """Return each client's tensors under all their names; what was not trained is the model's."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    stacks = {id(named[name]): stack for name, stack in {**weights, **buffers}.items()}
    places = model.state_dict(keep_vars=True)
    return [
        {
            name: stacks[id(places[name])][client] if id(places[name]) in stacks else tensor
            for name, tensor in learned_state(model).items()
        }
        for client in range(clients)
    ]
