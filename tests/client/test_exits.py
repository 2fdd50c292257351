"""The losses of several exits, against their formulas written out."""

import math
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from nefl.client.exits import TEACHING, TEMPERATURE, Graded, Mutual
from nefl.client.objective import Local, Objective
from nefl.state import TrainTask


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


class Classes:
    """What is learned, as far as a loss needs to know."""

    gives_logits = True

    def loss_of(self, outputs: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, target)


def loss(objective: Objective, model: nn.Module, round_number: int = 1) -> Tensor:
    local = Local(model, cast("Any", Classes()), TrainTask(round_number, 0, 1), 1, {})
    return objective.loss(local, BATCH, LABELS)


def cross_entropy(logits: Tensor) -> Tensor:
    return -logits.softmax(1)[torch.arange(2), LABELS].log().mean()


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    p, q = teacher.softmax(1), student.softmax(1)
    return (p * (p / q).log()).sum(1).mean()


def test_one_exit_is_plain_training() -> None:
    model = Exits(*some_logits(1))
    assert loss(Mutual(), model) == loss(Objective(), model)
    assert loss(Graded(), model) == loss(Objective(), model)


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
    torch.testing.assert_close(loss(Mutual(), Exits(a, b, c)), wanted)


@pytest.mark.parametrize(("round_number", "weight"), [(1, math.exp(-4.05)), (5, math.exp(-1.25))])
def test_mutual_teaching_may_start_slowly(round_number: int, weight: float) -> None:
    a, b = some_logits(2)
    wanted = cross_entropy(a) + cross_entropy(b) + weight * (divergence(a, b) + divergence(b, a))
    slow = Mutual(slow_start=10)
    torch.testing.assert_close(loss(slow, Exits(a, b), round_number), wanted)
    assert loss(slow, Exits(a, b), 10) == loss(Mutual(), Exits(a, b))


def test_graded_is_the_formula() -> None:
    a, b = some_logits(2)
    taught = divergence(a / TEMPERATURE, b / TEMPERATURE) * TEMPERATURE**2
    first = (1 - TEACHING) * cross_entropy(a) + TEACHING * taught
    wanted = (first + 2 * cross_entropy(b)) / 3
    torch.testing.assert_close(loss(Graded(), Exits(a, b)), wanted)


def test_teachers_are_taken_as_given() -> None:
    a, b = some_logits(2)
    model = Exits(a.clone(), b.clone())
    torch.autograd.backward(loss(Graded(), model))
    alone = Exits(b.clone())
    torch.autograd.backward(loss(Objective(), alone) * 2 / 3)
    got, wanted = model.logits[1].grad, alone.logits[0].grad
    assert got is not None
    assert wanted is not None
    torch.testing.assert_close(got, wanted)
