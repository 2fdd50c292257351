"""A client that trains in ExecuTorch: the same steps as torch's, on the same batches.

What the runtime does not do is done here, with arithmetic any host has: the running statistics of
batch norms, and what of a step a schedule wants.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nefl.artifacts.trainable import NormCard
from nefl.client.training import LocalTraining, count_steps, local_steps, own_generator
from nefl.errors import RunError
from nefl.ondevice.programs import Program
from nefl.ondevice.runtime import Session
from nefl.state import ClientUpdate, Tensors, TrainTask
from nefl.tasks.task import Rows


class DeviceTrainer:
    """Trains one submodel with its program, one task after another.

    Args:
        program: the program.
        sample: a few inputs and their target, any of the right shape.
        threads: threads of the runtime.
    """

    def __init__(self, program: Program, sample: tuple[Tensor, Tensor], threads: int = 1) -> None:
        self._card = program.card
        self._session = Session(program.code, *sample, threads)
        found = self._session.parameters.keys()
        if found != set(program.card.parameters):
            raise RunError(
                f"submodel {program.card.submodel} of {program.card.model}: its program has "
                f"parameters {', '.join(sorted(found ^ set(program.card.parameters)))} otherwise "
                "than its card says; export it again"
            )

    def train(
        self, task: TrainTask, weights: Tensors, rows: Rows, how: LocalTraining
    ) -> ClientUpdate:
        """Train a task.

        Args:
            task: whose work this is.
            weights: the submodel's tensors, by name.
            rows: the client's examples.
            how: what all clients have in common.

        Raises:
            RunError: if the runtime fails.
        """
        session, local = self._session, how.local
        for name, tensor in session.parameters.items():
            tensor.copy_(weights[name])
        running = {
            tensor.name: weights[tensor.name].clone()
            for tensor in self._card.layout
            if tensor.role == "statistic"
        }
        descent = session.descent(local.learning_rate, local.momentum, local.weight_decay)
        examples, total_loss = len(next(iter(rows.values()))), torch.zeros(())
        with own_generator(task, how) as generator, torch.no_grad():
            for step in local_steps(task, rows, how, generator):
                loss, *measured = session.run(step.inputs, step.target)
                descent.step(step.learning_rate)
                total_loss += loss
                for place, norm in enumerate(self._card.norms):
                    batch = measured[2 * place : 2 * place + 2]
                    follow(running, norm, batch, len(step.inputs))
        trained = {
            tensor.name: session.parameters[tensor.name].clone()
            if tensor.role == "parameter"
            else running[tensor.name]
            for tensor in self._card.layout
        }
        metrics = {"loss": float(total_loss) / count_steps(examples, local)}
        return ClientUpdate(task, trained, examples, metrics)


def follow(running: dict[str, Tensor], norm: NormCard, batch: Sequence[Tensor], size: int) -> None:
    """Let running statistics follow a batch, as torch's batch norms do.

    Args:
        running: all running statistics by name; they change.
        norm: whose mean and variance were measured.
        batch: the two, [channels] each; the variance is the biased one that the batch is scaled by.
        size: examples in the batch.
    """
    mean, variance = batch
    count = size * norm.values
    tracked = running[f"{norm.name}.num_batches_tracked"]
    tracked += 1
    share = 1 / float(tracked) if norm.momentum is None else norm.momentum
    unbiased = variance * (count / max(count - 1, 1))
    for name, seen in (("running_mean", mean), ("running_var", unbiased)):
        kept = running[f"{norm.name}.{name}"]
        kept.mul_(1 - share).add_(seen, alpha=share)
