"""The model, the data and the training."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from nefl import Family, SubmodelSpec  # nefl:
from nefl.nesting.spec import kept_channels  # nefl:

CLASSES = 10
Loader = DataLoader[tuple[Tensor, ...]]
Loaders = tuple[Loader, Loader]


class Net(nn.Module):
    """A small convolutional network."""

    def __init__(self, width: float = 1.0) -> None:  # nefl: it can be narrow
        super().__init__()
        self.conv1 = nn.Conv2d(1, kept_channels(16, width), 3, padding=1)  # nefl: was 16
        self.norm1 = nn.BatchNorm2d(self.conv1.out_channels)
        self.conv2 = nn.Conv2d(self.conv1.out_channels, kept_channels(32, width), 3, padding=1)
        self.norm2 = nn.BatchNorm2d(self.conv2.out_channels)
        self.fc = nn.Linear(self.conv2.out_channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = torch.relu(self.norm1(self.conv1(x)))
        x = nn.functional.max_pool2d(torch.relu(self.norm2(self.conv2(x))), 2)
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


def make_family() -> Family:
    """Return three nested models, each a corner of the next. nefl: all of it."""
    blocks = ((1.0,),)  # one stage, no residual blocks to leave out
    widths = (0.25, 0.5, 1.0)
    specs = tuple(SubmodelSpec(blocks, width) for width in widths)
    return Family(lambda spec: Net(spec.stage_width(0)), specs)


@cache
def load_data(partition: int, partitions: int) -> Loaders:
    """Return a node's training and test examples."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    mine = order[partition::partitions]
    cut = len(mine) * 4 // 5
    train, test = (TensorDataset(images[part], labels[part]) for part in (mine[:cut], mine[cut:]))
    return DataLoader(train, batch_size=16, shuffle=True), DataLoader(test, batch_size=64)


def count(loader: Loader) -> int:
    """Return how many examples a loader has."""
    return sum(len(labels) for _, labels in loader)


def train(model: nn.Module, loader: Loader, epochs: int, rate: float) -> float:
    """Train a model in place; return its mean loss."""
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    model.train()
    total, steps = 0.0, 0
    for _ in range(epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            total, steps = total + float(loss.detach()), steps + 1
    return total / steps


def test(model: nn.Module, loader: Loader) -> float:
    """Return a model's accuracy."""
    model.eval()
    right = count = 0
    with torch.inference_mode():
        for images, labels in loader:
            right += int((model(images).argmax(1) == labels).sum())
            count += len(labels)
    return right / count
