"""One model teaching another: how far the outputs of one are from those of the other."""

from typing import Protocol

from torch import Tensor
from torch.nn import functional


class Answering(Protocol):
    """What is learned, as far as teaching needs to know."""

    @property
    def gives_logits(self) -> bool:
        """Whether outputs are logits of classes or tokens, not numbers to foretell."""


def divergence(
    student: Tensor, teacher: Tensor, learned: Answering, temperature: float = 1.0
) -> Tensor:
    """Return how far a student's outputs are from a teacher's, which are taken as given.

    That is the mean Kullback-Leibler divergence of logits, both divided by the temperature, times
    its square, so that gradients stay of one size; of numbers the mean squared difference.
    """
    if not learned.gives_logits:
        return functional.mse_loss(student, teacher.detach())
    if temperature != 1.0:
        student, teacher = student / temperature, teacher / temperature
    found = functional.kl_div(
        functional.log_softmax(student.flatten(0, -2), 1),
        functional.log_softmax(teacher.detach().flatten(0, -2), 1),
        reduction="batchmean",
        log_target=True,
    )
    return found if temperature == 1.0 else found * temperature**2
