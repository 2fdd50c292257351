"""The losses of several exits, against their formulas written out."""

import torch
from torch import Tensor, nn

from nefl.losses import TEACHING, TEMPERATURE, graded, mutual, plain


class Exits(nn.Module):
    """A model whose exits' logits are its parameters."""

    def __init__(self, *logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.ParameterList(logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_exits(x)[-1]

    def forward_exits(self, _: Tensor) -> list[Tensor]:
        return list(self.logits)


LABELS = torch.tensor([0, 2])
BATCH = torch.zeros(2, 1)


def some_logits(count: int) -> list[Tensor]:
    return list(torch.randn(count, 2, 3, generator=torch.Generator().manual_seed(1)))


def cross_entropy(logits: Tensor) -> Tensor:
    return -logits.softmax(1)[torch.arange(2), LABELS].log().mean()


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    p, q = teacher.softmax(1), student.softmax(1)
    return (p * (p / q).log()).sum(1).mean()


def test_one_exit_is_plain_training() -> None:
    model = Exits(*some_logits(1))
    assert mutual(model, BATCH, LABELS) == plain(model, BATCH, LABELS)
    assert graded(model, BATCH, LABELS) == plain(model, BATCH, LABELS)


def test_mutual_is_the_formula() -> None:
    a, b, c = some_logits(3)
    wanted = (
        sum(cross_entropy(x) for x in (a, b, c))
        + (
            divergence(a, b)
            + divergence(a, c)
            + divergence(b, a)
            + divergence(b, c)
            + divergence(c, a)
            + divergence(c, b)
        )
        / 2
    )
    torch.testing.assert_close(mutual(Exits(a, b, c), BATCH, LABELS), wanted)


def test_graded_is_the_formula() -> None:
    a, b = some_logits(2)
    taught = divergence(a / TEMPERATURE, b / TEMPERATURE) * TEMPERATURE**2
    first = (1 - TEACHING) * cross_entropy(a) + TEACHING * taught
    wanted = (first + 2 * cross_entropy(b)) / 3
    torch.testing.assert_close(graded(Exits(a, b), BATCH, LABELS), wanted)


def test_teachers_are_taken_as_given() -> None:
    a, b = some_logits(2)
    model = Exits(a.clone(), b.clone())
    torch.autograd.backward(graded(model, BATCH, LABELS))
    alone = Exits(b.clone())
    torch.autograd.backward(plain(alone, BATCH, LABELS) * 2 / 3)
    got, wanted = model.logits[1].grad, alone.logits[0].grad
    assert got is not None
    assert wanted is not None
    torch.testing.assert_close(got, wanted)
