import pytest
import torch
from torch import Tensor, nn

from nefl.client import LocalTraining, batches_per_epoch, make_optimiser, train
from nefl.config import LocalConfig, ScheduleConfig
from nefl.state import TrainTask


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 3)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        return self.fc(x.flatten(1))  # type: ignore[no-any-return]


def plain(images: Tensor, _: torch.Generator | None) -> Tensor:
    return images.float() / 255


def how(local: LocalConfig, clip: float | None = None, seed: int = 0) -> LocalTraining:
    return LocalTraining(local, ScheduleConfig(), 10, seed, clip, plain)


def examples(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 1, 2, 2), generator=generator).to(torch.uint8)
    return images, torch.randint(0, 3, (count,), generator=generator)


def test_one_full_batch_is_one_step_of_gradient_descent() -> None:
    images, labels = examples(6)
    model, reference = Net(), Net()
    local = LocalConfig(epochs=1, batch_size=6, learning_rate=0.5)
    update = train(TrainTask(1, 0, 1), model, images, labels, how(local))
    loss = nn.functional.cross_entropy(reference(plain(images, None)), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(mine, theirs - 0.5 * theirs.grad)
    assert update.examples == 6
    assert update.metrics["loss"] == pytest.approx(loss.item())


def test_the_rate_follows_the_round() -> None:
    images, labels = examples(6)
    local = LocalConfig(epochs=1, batch_size=6)
    moved = []
    for round_number in (1, 6, 9):
        model = Net()
        before = model.fc.weight.detach().clone()
        train(TrainTask(round_number, 0, 1), model, images, labels, how(local))
        moved.append((model.fc.weight - before).norm().item())
    assert moved[1] == pytest.approx(moved[0] / 10, rel=1e-3)
    assert moved[2] == pytest.approx(moved[0] / 100, rel=1e-2)


def test_every_example_once_an_epoch_in_an_order_of_its_own() -> None:
    images = torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1).expand(10, 1, 2, 2)
    labels = torch.zeros(10, dtype=torch.int64)
    local = LocalConfig(epochs=2, batch_size=4)
    orders = []
    for client, round_number, seed in ((0, 1, 0), (0, 1, 0), (1, 1, 0), (0, 2, 0), (0, 1, 5)):
        model = Net()
        train(TrainTask(round_number, client, 1), model, images, labels, how(local, seed=seed))
        values = (torch.cat(model.seen)[:, 0, 0, 0] * 255).round().int().tolist()
        assert sorted(values[:10]) == sorted(values[10:]) == list(range(10))
        orders.append(tuple(values))
    assert orders[0] == orders[1]
    assert len(set(orders)) == 4


def test_a_last_batch_of_one_is_left_out() -> None:
    assert [batches_per_epoch(n, 4) for n in (1, 2, 4, 5, 6, 8, 9)] == [1, 1, 1, 1, 2, 2, 2]
    images, labels = examples(9)
    model = Net()
    train(TrainTask(1, 0, 1), model, images, labels, how(LocalConfig(epochs=1, batch_size=4)))
    assert [len(batch) for batch in model.seen] == [4, 4]


def test_gradients_are_clipped() -> None:
    images, labels = examples(6)
    local = LocalConfig(epochs=1, batch_size=6, learning_rate=1.0)
    model = Net()
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    train(TrainTask(1, 0, 1), model, images, labels, how(local, clip=0.01))
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert (after - before).norm().item() == pytest.approx(0.01, rel=1e-2)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_optimisers_by_name(name: str) -> None:
    local = LocalConfig(optimizer=name, momentum=0.9, weight_decay=0.01)  # type: ignore[arg-type]
    optimiser = make_optimiser(Net(), local)
    assert type(optimiser).__name__.lower() == name
    assert optimiser.param_groups[0]["weight_decay"] == 0.01
    if name == "sgd":
        assert optimiser.param_groups[0]["momentum"] == 0.9
