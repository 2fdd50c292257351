"""Local training, and what an objective sees and does in it."""

from copy import deepcopy
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nefl.client.objective import Local, Objective
from nefl.client.optimiser import make_optimiser
from nefl.client.training import Given, LocalTraining, batches_per_epoch, train
from nefl.config import LocalConfig, ScheduleConfig
from nefl.errors import RunError
from nefl.nesting.signature import Signature
from nefl.state import TrainTask
from nefl.tasks.task import Rows, Task


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 3)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        return self.fc(x.flatten(1))  # type: ignore[no-any-return]


def plain(rows: Rows, _: torch.Generator | None) -> Tensor:
    return rows["images"].float() / 255


COLUMNS: dict[str, np.ndarray] = {
    "images": np.zeros((1, 1, 2, 2), np.uint8),
    "labels": np.zeros(1, np.int64),
}
TASK = Task(
    "squares",
    COLUMNS,
    COLUMNS,
    Signature((1, 2, 2), 3),
    inputs=plain,
    target="labels",
    loss="cross-entropy",
    metrics=["accuracy"],
)


def how(
    local: LocalConfig,
    clip: float | None = None,
    seed: int = 0,
    objective: Objective | None = None,
) -> LocalTraining:
    schedule = ScheduleConfig()
    return LocalTraining(local, schedule, 10, seed, clip, TASK, objective=objective or Objective())


def examples(count: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 1, 2, 2), generator=generator).to(torch.uint8)
    return {"images": images, "labels": torch.randint(0, 3, (count,), generator=generator)}


def test_one_full_batch_is_one_step_of_gradient_descent() -> None:
    rows = examples(6)
    model, reference = Net(), Net()
    local = LocalConfig(epochs=1, batch_size=6, learning_rate=0.5)
    update, _ = train(TrainTask(1, 0, 1), model, rows, how(local))
    loss = nn.functional.cross_entropy(reference(plain(rows, None)), rows["labels"])
    loss.backward()  # type: ignore[no-untyped-call]
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(mine, theirs - 0.5 * theirs.grad)
    assert update.examples == 6
    assert update.metrics["loss"] == pytest.approx(loss.item())


def test_the_rate_follows_the_round() -> None:
    rows = examples(6)
    local = LocalConfig(epochs=1, batch_size=6)
    moved = []
    for round_number in (1, 6, 9):
        model = Net()
        before = model.fc.weight.detach().clone()
        train(TrainTask(round_number, 0, 1), model, rows, how(local))
        moved.append((model.fc.weight - before).norm().item())
    assert moved[1] == pytest.approx(moved[0] / 10, rel=1e-3)
    assert moved[2] == pytest.approx(moved[0] / 100, rel=1e-2)


def test_every_example_once_an_epoch_in_an_order_of_its_own() -> None:
    images = torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1).expand(10, 1, 2, 2)
    rows = {"images": images, "labels": torch.zeros(10, dtype=torch.int64)}
    local = LocalConfig(epochs=2, batch_size=4)
    orders = []
    for client, round_number, seed in ((0, 1, 0), (0, 1, 0), (1, 1, 0), (0, 2, 0), (0, 1, 5)):
        model = Net()
        train(TrainTask(round_number, client, 1), model, rows, how(local, seed=seed))
        values = (torch.cat(model.seen)[:, 0, 0, 0] * 255).round().int().tolist()
        assert sorted(values[:10]) == sorted(values[10:]) == list(range(10))
        orders.append(tuple(values))
    assert orders[0] == orders[1]
    assert len(set(orders)) == 4


def test_a_last_batch_of_one_is_left_out() -> None:
    assert [batches_per_epoch(n, 4) for n in (1, 2, 4, 5, 6, 8, 9)] == [1, 1, 1, 1, 2, 2, 2]
    rows = examples(9)
    model = Net()
    train(TrainTask(1, 0, 1), model, rows, how(LocalConfig(epochs=1, batch_size=4)))
    assert [len(batch) for batch in model.seen] == [4, 4]


def test_gradients_are_clipped() -> None:
    rows = examples(6)
    local = LocalConfig(epochs=1, batch_size=6, learning_rate=1.0)
    model = Net()
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    train(TrainTask(1, 0, 1), model, rows, how(local, clip=0.01))
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert (after - before).norm().item() == pytest.approx(0.01, rel=1e-2)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_optimisers_by_name(name: str) -> None:
    local = LocalConfig(optimizer=name, weight_decay=0.01)  # type: ignore[arg-type]
    optimiser = make_optimiser(Net(), local)
    assert type(optimiser).__name__.lower() == name
    assert optimiser.param_groups[0]["weight_decay"] == 0.01


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_descent_is_that_of_torch(momentum: float, decay: float) -> None:
    """To the last bit, with a parameter that gets no gradient at first, and a rate that changes."""
    torch.manual_seed(0)
    mine = nn.ParameterList([torch.randn(5, 7), torch.randn(3)])
    theirs = deepcopy(mine)
    local = LocalConfig(learning_rate=0.3, momentum=momentum, weight_decay=decay)
    ours = make_optimiser(mine, local)
    other = torch.optim.SGD(theirs, 0.3, momentum=momentum, weight_decay=decay, foreach=True)
    for step in range(4):
        gradients = [torch.randn(5, 7), torch.randn(3) if step else None]
        for model, optimiser in ((mine, ours), (theirs, other)):
            optimiser.zero_grad(set_to_none=True)
            for parameter, gradient in zip(model, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.clone()
            optimiser.param_groups[0]["lr"] = 0.3 / (1 + step)
            optimiser.step()
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


class Noting(Objective):
    """Keeps and sends what it sees, and stops all movement of the bias."""

    keeps: ClassVar[tuple[str, ...]] = ("count",)
    sends: ClassVar[tuple[str, ...]] = ("moved",)

    def before_step(self, local: Local) -> None:
        gradient = local.parameters["fc.bias"].grad
        assert gradient is not None
        gradient.zero_()

    def after(self, local: Local) -> None:
        seen = {name: local.memory["count"][name] + local.steps for name in local.parameters}
        local.memory["count"] = seen
        local.sent["moved"] = {n: p - local.began[n] for n, p in local.parameters.items()}


def zeros() -> dict[str, Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in Net().state_dict().items()}


def test_an_objective_changes_gradients_and_has_a_memory() -> None:
    model, before = Net(), Net()
    local = LocalConfig(epochs=2, batch_size=4, learning_rate=0.5)
    given = Given(before.state_dict(), {}, {"count": zeros()})
    task = TrainTask(1, 0, 1)
    update, kept = train(task, model, examples(8), how(local, objective=Noting()), given)
    assert torch.equal(model.fc.bias, before.fc.bias)
    assert not torch.equal(model.fc.weight, before.fc.weight)
    assert torch.equal(update.sent["moved"]["fc.weight"], model.fc.weight - before.fc.weight)
    assert kept["count"]["fc.bias"].tolist() == [4, 4, 4]
    _, kept = train(
        task, Net(), examples(8), how(local, objective=Noting()), Given(zeros(), {}, kept)
    )
    assert kept["count"]["fc.bias"].tolist() == [8, 8, 8]


def test_the_sum_of_rates_is_that_of_the_schedule() -> None:
    class Sum(Objective):
        found = 0.0

        def after(self, local: Local) -> None:
            Sum.found = local.rate_sum

    local = LocalConfig(epochs=3, batch_size=4, learning_rate=0.5)
    train(TrainTask(6, 0, 1), Net(), examples(8), how(local, objective=Sum()))
    assert Sum.found == pytest.approx(6 * 0.05)


class Short(Objective):
    sends: ClassVar[tuple[str, ...]] = ("part",)

    def after(self, local: Local) -> None:
        local.sent["part"] = {"fc.weight": local.parameters["fc.weight"].detach()}


def test_a_set_that_lacks_a_parameter_is_refused() -> None:
    with pytest.raises(RunError, match=r"Short.sends: set 'part' has no tensor for fc.bias"):
        train(TrainTask(1, 0, 1), Net(), examples(4), how(LocalConfig(), objective=Short()))


class Tied(Net):
    def __init__(self) -> None:
        super().__init__()
        self.again = self.fc


def test_tied_parameters_are_seen_once_and_sent_under_each_name() -> None:
    class Moved(Objective):
        sends: ClassVar[tuple[str, ...]] = ("moved",)

        def after(self, local: Local) -> None:
            assert set(local.parameters) == {"fc.weight", "fc.bias"}
            local.sent["moved"] = {n: p - local.began[n] for n, p in local.parameters.items()}

    local = LocalConfig(epochs=1, batch_size=4)
    update, _ = train(TrainTask(1, 0, 1), Tied(), examples(4), how(local, objective=Moved()))
    sent = update.sent["moved"]
    assert sent.keys() == update.trained.keys()
    assert torch.equal(sent["fc.weight"], sent["again.weight"])
