"""Local training: a client gets a submodel, its examples and a seed, and returns an update."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nefl.config import LocalConfig, ScheduleConfig
from nefl.losses import Loss, plain
from nefl.schedule import learning_rate
from nefl.seeds import Purpose, number_for
from nefl.state import ClientUpdate, TrainTask
from nefl.tasks.task import Rows, Task, arranged


@dataclass(frozen=True)
class LocalTraining:
    """What all clients of a run have in common.

    Attributes:
        local: epochs, batches and optimiser.
        schedule: how the learning rate changes over the run.
        rounds: rounds of the whole run.
        seed: the run's seed.
        clip_norm: largest gradient norm, if it is clipped.
        learned: what is learned: makes batches of rows, and knows their loss.
        memory_format: how a batch of inputs lies in memory.
        loss: what is minimised.
    """

    local: LocalConfig
    schedule: ScheduleConfig
    rounds: int
    seed: int
    clip_norm: float | None
    learned: Task
    memory_format: torch.memory_format = torch.contiguous_format
    loss: Loss = plain


def train(task: TrainTask, model: nn.Module, rows: Rows, how: LocalTraining) -> ClientUpdate:
    """Train a submodel in place on a client's examples.

    Args:
        task: whose work this is; with the run's seed it fixes everything random.
        model: the submodel, with the weights to start from.
        rows: its examples, on the model's device.
        how: what all clients have in common.

    Returns:
        The update. Its tensors are the model's own: use them before the model is used again.
    """
    seed = number_for(how.seed, Purpose.TRAINING, task.round_number, task.client)
    device = next(iter(rows.values())).device
    devices = [device] if device.type == "cuda" else []
    # Dropout and its like draw from torch's global generator: it too is the client's own.
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        return _train(task, model, rows, how, torch.Generator().manual_seed(seed))


def _train(
    task: TrainTask,
    model: nn.Module,
    rows: Rows,
    how: LocalTraining,
    generator: torch.Generator,
) -> ClientUpdate:
    column = next(iter(rows.values()))
    examples, device = len(column), column.device
    steps = how.local.epochs * batches_per_epoch(examples, how.local.batch_size)
    optimiser = make_optimiser(model, how.local)
    total_loss = torch.zeros((), device=device)
    model.train()
    for step, chosen in enumerate(_batches(examples, how.local, generator)):
        rate = learning_rate(
            how.schedule,
            how.local.learning_rate,
            how.rounds,
            task.round_number - 1 + step / steps,
            steps,
        )
        for group in optimiser.param_groups:
            group["lr"] = rate
        chosen = chosen.to(device)
        some = {name: values[chosen] for name, values in rows.items()}
        inputs = arranged(how.learned.make_inputs(some, generator), how.memory_format)
        loss = how.loss(model, inputs, how.learned.make_target(some), how.learned.loss_of)
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        if how.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), how.clip_norm)
        optimiser.step()
        total_loss += loss.detach()
    metrics = {"loss": float(total_loss) / steps}
    return ClientUpdate(task, model.state_dict(), examples, metrics)


def make_optimiser(model: nn.Module, local: LocalConfig) -> torch.optim.Optimizer:
    """Return a fresh optimiser; clients keep no state of it between rounds."""
    parameters = list(model.parameters())
    if local.optimizer == "sgd":
        return torch.optim.SGD(
            parameters,
            local.learning_rate,
            momentum=local.momentum,
            weight_decay=local.weight_decay,
            foreach=True,
        )
    kind = torch.optim.Adam if local.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, local.learning_rate, weight_decay=local.weight_decay, foreach=True)


def batches_per_epoch(examples: int, batch_size: int) -> int:
    """Return the steps of an epoch. A last batch of one example is left out where others are:
    batch norms cannot take statistics of a single value.
    """
    full, rest = divmod(examples, batch_size)
    return full + (rest > 1 or full == 0)


def _batches(examples: int, local: LocalConfig, generator: torch.Generator) -> Iterator[Tensor]:
    count = batches_per_epoch(examples, local.batch_size)
    for _ in range(local.epochs):
        order = torch.randperm(examples, generator=generator)
        yield from torch.split(order, local.batch_size)[:count]
