"""What a teacher's outputs make of a student's loss."""

from dataclasses import dataclass

import pytest
import torch

from nefl.client.teaching import divergence


@dataclass(frozen=True)
class Learned:
    gives_logits: bool


@pytest.mark.parametrize("outputs", [1, 2])
def test_numbers_are_taught_by_their_distance(outputs: int) -> None:
    """They are no logits, however many there are."""
    student = torch.tensor([[1.0], [3.0]]).expand(2, outputs)
    teacher = torch.tensor([[2.0], [5.0]]).expand(2, outputs)
    found = divergence(student, teacher, Learned(gives_logits=False))
    assert float(found) == pytest.approx((1 + 4) / 2)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("shape", [(4, 3), (2, 2, 3)])
def test_logits_are_taught_by_their_divergence(temperature: float, shape: tuple[int, ...]) -> None:
    a, b = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    teacher = b.clone().requires_grad_()
    student = a.clone().requires_grad_()
    found = divergence(student, teacher, Learned(gives_logits=True), temperature)
    p, q = (b / temperature).softmax(-1), (a / temperature).softmax(-1)
    wanted = (p * (p / q).log()).sum(-1).mean() * temperature**2
    torch.testing.assert_close(found.detach(), wanted)
    torch.autograd.backward(found)
    assert teacher.grad is None, "a teacher learns nothing from it"
    assert student.grad is not None
