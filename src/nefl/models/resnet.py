"""ResNets with step sizes, in any width and with any blocks left out.

Names follow torchvision's. A skipped block is absent; where its shortcut is a projection, that
stays. `relu(shortcut(x) + s * F(x))` is the block, as in the paper.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Literal

from torch import Tensor, nn

from nefl.models.design import Making, Norm
from nefl.models.images import LARGE_IMAGES, SMALL_IMAGES, image_misfit
from nefl.nesting.modules import Exit, StaticBatchNorm2d, StepSize
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Blocks, SubmodelSpec, kept_channels


@dataclass(frozen=True)
class ResNetDesign:
    """What tells one ResNet from another.

    Attributes:
        stages: inner channels and number of blocks of each stage.
        stem: `small` is a 3×3/1 convolution, `large` a 7×7/2 one.
        stem_channels: channels of the stem.
        pool: whether a 3×3/2 max pool follows the stem.
        bottleneck: whether blocks are bottlenecks instead of pairs of 3×3 convolutions.
        expansion: output channels of a block over its inner channels.
        init: the first weights, a key of `RESNET_INITS`. The authors of the paper start networks
            with a stem of 16 channels by He's rule and the others as torch makes them.
    """

    stages: tuple[tuple[int, int], ...]
    stem: Literal["small", "large"] = "small"
    stem_channels: int = 64
    pool: bool = True
    bottleneck: bool = False
    expansion: int = 1
    init: str = "torch"

    @property
    def full_blocks(self) -> Blocks:
        """The block vectors of the global model."""
        return tuple((1.0,) * blocks for _, blocks in self.stages)

    @property
    def usual(self) -> Signature:
        """What it takes and gives where nothing else is said."""
        return LARGE_IMAGES if self.stem == "large" else SMALL_IMAGES

    @property
    def inits(self) -> Iterable[str]:
        """The names of first weights it knows."""
        return RESNET_INITS

    def misfit(self, signature: Signature) -> str | None:
        """Say why it cannot take such inputs."""
        return image_misfit(signature)

    def build(self, spec: SubmodelSpec, making: Making) -> "ResNet":
        """Build the module of a spec."""
        return ResNet(
            self,
            spec,
            classes=making.signature.outputs,
            channels=making.signature.input_shape[0],
            norm=making.norm,
            learned_steps=making.learned_steps,
            init=making.init,
        )


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def _batch_norm(channels: int, norm: Norm) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels) if norm == "tracked" else StaticBatchNorm2d(channels)


class Shortcut(nn.Module):
    """What is left of a skipped block: its projection, followed by the ReLU as usual."""

    def __init__(self, projection: nn.Sequential) -> None:
        super().__init__()
        self.downsample = projection
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Project to the next stage's shape."""
        return self.relu(self.downsample(x))  # type: ignore[no-any-return]


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and the shortcut around them."""

    def __init__(
        self,
        channels: tuple[int, int, int],
        stride: int,
        step: StepSize,
        shortcut: nn.Module | None,
        norm: Norm,
    ) -> None:
        super().__init__()
        inputs, inner, outputs = channels
        self.conv1 = _convolution(inputs, inner, 3, stride)
        self.bn1 = _batch_norm(inner, norm)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _convolution(inner, outputs, 3)
        self.bn2 = _batch_norm(outputs, norm)
        self.downsample = shortcut
        self.step_size = step

    def forward(self, x: Tensor) -> Tensor:
        """Return `relu(shortcut(x) + s * F(x))`."""
        shortcut = x if self.downsample is None else self.downsample(x)
        branch = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(self.step_size(shortcut, branch))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions and the shortcut around them."""

    def __init__(
        self,
        channels: tuple[int, int, int],
        stride: int,
        step: StepSize,
        shortcut: nn.Module | None,
        norm: Norm,
    ) -> None:
        super().__init__()
        inputs, inner, outputs = channels
        self.conv1 = _convolution(inputs, inner, 1)
        self.bn1 = _batch_norm(inner, norm)
        self.conv2 = _convolution(inner, inner, 3, stride)
        self.bn2 = _batch_norm(inner, norm)
        self.conv3 = _convolution(inner, outputs, 1)
        self.bn3 = _batch_norm(outputs, norm)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut
        self.step_size = step

    def forward(self, x: Tensor) -> Tensor:
        """Return `relu(shortcut(x) + s * F(x))`."""
        shortcut = x if self.downsample is None else self.downsample(x)
        branch = self.relu(self.bn1(self.conv1(x)))
        branch = self.relu(self.bn2(self.conv2(branch)))
        branch = self.bn3(self.conv3(branch))
        return self.relu(self.step_size(shortcut, branch))  # type: ignore[no-any-return]


class ResNetExit(Exit):
    """An early classifier behind a ResNet block.

    One 1×1/2 convolution with norm and ReLU for each stage that is left brings the features to the
    size and channels that the last classifier gets.
    """

    def __init__(self, channels: tuple[int, ...], classes: int, norm: Norm) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(channels):
            layers += [
                _convolution(inputs, outputs, 1, 2),
                _batch_norm(outputs, norm),
                nn.ReLU(inplace=True),
            ]
        self.downsample = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.fc(self.avgpool(self.downsample(x)).flatten(1))  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """A ResNet of one spec. `forward` returns the logits of its deepest classifier."""

    def __init__(
        self,
        design: ResNetDesign,
        spec: SubmodelSpec,
        *,
        classes: int,
        channels: int,
        norm: Norm = "tracked",
        learned_steps: bool = True,
        init: str | None = None,
    ) -> None:
        super().__init__()
        self._design, self._spec, self._norm = design, spec, norm
        self._learned_steps = learned_steps
        stem = kept_channels(design.stem_channels, spec.stage_width(0))
        self.stage_channels = tuple(
            kept_channels(size * design.expansion, spec.stage_width(i))
            for i, (size, _) in enumerate(design.stages)
        )
        large = design.stem == "large"
        self.conv1 = _convolution(channels, stem, 7 if large else 3, 2 if large else 1)
        self.bn1 = _batch_norm(stem, norm)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if design.pool else nn.Identity()
        ends_early = self._add_stages((stem, *self.stage_channels))
        self.exits = nn.ModuleDict({str(depth): self._exit(depth, classes) for depth in spec.exits})
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = None if ends_early else nn.Linear(self.stage_channels[-1], classes)
        self.apply(RESNET_INITS[init or design.init])

    def _add_stages(self, widths: tuple[int, ...]) -> bool:
        """Add `layer1`, `layer2`, …; tell whether the last exit is the end of the network."""
        spec = self._spec
        last_exit = spec.exits[-1] if spec.exits else 0
        after_exit = [step for stage in spec.blocks for step in stage][last_exit:]
        ends_early = bool(last_exit) and not any(after_exit)
        depth = 0
        for i, steps in enumerate(spec.blocks):
            blocks: OrderedDict[str, nn.Module] = OrderedDict()
            for j, step in enumerate(steps):
                depth += 1
                if ends_early and depth > last_exit:
                    break
                block = self._block(i, j, step, widths)
                if block is not None:
                    blocks[str(j)] = block
            self.add_module(f"layer{i + 1}", nn.Sequential(blocks))
        return ends_early

    def _block(self, i: int, j: int, step: float, widths: tuple[int, ...]) -> nn.Module | None:
        """Return block j of stage i, the rest of it if it is skipped, or nothing."""
        inputs, outputs = (widths[i] if j == 0 else widths[i + 1]), widths[i + 1]
        stride = 2 if j == 0 and i > 0 else 1
        shortcut = None
        if j == 0 and self._projects(i):
            shortcut = nn.Sequential(
                _convolution(inputs, outputs, 1, stride), _batch_norm(outputs, self._norm)
            )
        if step == 0:
            return Shortcut(shortcut) if shortcut is not None else None
        inner = kept_channels(self._design.stages[i][0], self._spec.block_width(i, j))
        kind = Bottleneck if self._design.bottleneck else BasicBlock
        step_size = StepSize(step, learned=self._learned_steps)
        return kind((inputs, inner, outputs), stride, step_size, shortcut, self._norm)

    def _projects(self, stage: int) -> bool:
        """Whether a stage begins with a projection shortcut in the global model.

        Asked of the design: a submodel of unequal widths must not gain or lose one.
        """
        design = self._design
        return stage > 0 or design.stem_channels != design.stages[0][0] * design.expansion

    def _exit(self, depth: int, classes: int) -> ResNetExit:
        """Return the exit that sits after `depth` blocks of the global model."""
        ends = list(accumulate(len(steps) for steps in self._spec.blocks))
        stage = next(i for i, end in enumerate(ends) if depth <= end)
        return ResNetExit(self.stage_channels[stage:], classes, self._norm)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the deepest classifier."""
        return self._logits(x, self._spec.exits[-1:] if self.fc is None else ())[-1]

    def forward_exits(self, x: Tensor) -> list[Tensor]:
        """Return the logits of every classifier, the deepest last."""
        return self._logits(x, self._spec.exits)

    def _logits(self, x: Tensor, exits: tuple[int, ...]) -> list[Tensor]:
        logits = []
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        depth = 0
        for i, steps in enumerate(self._spec.blocks):
            present = dict(self.get_submodule(f"layer{i + 1}").named_children())
            for j in range(len(steps)):
                if (block := present.get(str(j))) is not None:
                    x = block(x)
                depth += 1
                if depth in exits:
                    logits.append(self.exits[str(depth)](x))
        if self.fc is not None:
            logits.append(self.fc(self.avgpool(x).flatten(1)))
        return logits


def _as_made(_module: nn.Module) -> None:
    """Leave torch's own first weights: uniform, bounded by the fan-in of a layer."""


def _he(module: nn.Module, mode: Literal["fan_in", "fan_out"], *, classifier: bool) -> None:
    if not (isinstance(module, nn.Conv2d) or (classifier and isinstance(module, nn.Linear))):
        return
    # Without storage there is nothing to fill, and torch would load its compiler to do so: seconds
    # at every start of a run and of a worker.
    if not module.weight.is_meta:
        nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")


RESNET_INITS: Mapping[str, Callable[[nn.Module], None]] = MappingProxyType(
    {
        "torch": _as_made,
        "he": partial(_he, mode="fan_in", classifier=True),
        "he-fan-out": partial(_he, mode="fan_out", classifier=False),
    }
)
"""First weights by name. Behind a norm only their size relative to a step matters, and it does:
the larger they are, the smaller the effective step.
"""
