"""Your own model in nefl: a small residual net, scaled in width and depth, averaged by hand.

Two things make a model fit: a builder from a spec to a module, and a list of specs. The rule is
that every tensor of a submodel is the leading corner of the global tensor of the same name.

    python examples/custom_resnet.py
"""

import torch
from torch import Tensor, nn

from nefl import Aggregate, ClientUpdate, Family, StepSize, SubmodelSpec, TrainTask, extract
from nefl.nesting.profile import profile_family
from nefl.nesting.signature import Signature
from nefl.nesting.spec import kept_channels

CHANNELS, CLASSES, BLOCKS = 32, 4, 3


class Block(nn.Module):
    """A residual branch of two convolutions, with a learned step size."""

    def __init__(self, channels: int, step: float) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.step = StepSize(step)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(x + s * F(x))."""
        return torch.relu(self.step(x, self.branch(x)))


class TinyNet(nn.Module):
    """A stem, some of the blocks, a classifier. A block keeps its name when others are skipped."""

    def __init__(self, spec: SubmodelSpec) -> None:
        super().__init__()
        channels = kept_channels(CHANNELS, spec.stage_width(0))
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.ModuleDict(
            {str(i): Block(channels, step) for i, step in enumerate(spec.blocks[0]) if step}
        )
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.stem(x)
        for block in self.blocks.values():
            x = block(x)
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


def main() -> None:
    """Build the family, train two unequal submodels for one step each, average them."""
    family = Family(
        TinyNet,
        (
            SubmodelSpec(((1.0, 0.0, 1.0),), width=0.5),  # narrow, and the middle block is absent
            SubmodelSpec(((1.0, 1.0, 1.0),), width=0.75),
            SubmodelSpec(((1.0, 1.0, 1.0),)),
        ),
    )
    for row in profile_family(family, Signature((3, 16, 16), 10), batch_size=8):
        print(f"submodel {row.index}: {row.params} parameters, {row.macs_total / 1e6:.2f}M MACs")

    state = family.initial_state(seed=0)
    total = Aggregate(state, family)
    for client, submodel in enumerate([1, 3]):
        model = family.build(family.specs[submodel - 1])
        model.load_state_dict(extract(state, family, submodel))
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        images, labels = torch.randn(8, 3, 16, 16), torch.randint(CLASSES, (8,))
        loss = nn.functional.cross_entropy(model(images), labels)
        torch.autograd.backward(loss)
        optimiser.step()
        total.add(ClientUpdate(TrainTask(1, client, submodel), model.state_dict(), examples=8))
    state = total.finish()

    moved = sum(
        int((state.shared[n] != t).sum()) for n, t in family.initial_state(0).shared.items()
    )
    print(f"after round {state.round_number}: {moved} shared elements have moved")


if __name__ == "__main__":
    main()
