"""Residual networks of 1-D convolutions for series of numbers, nested in width and depth."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor, nn

from nefl.models.design import Making, Norm
from nefl.nesting.modules import Exit, StaticBatchNorm1d, StepSize
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Blocks, SubmodelSpec, kept_channels


@dataclass(frozen=True)
class Conv1dDesign:
    """What tells one of these networks from another.

    Attributes:
        stages: channels and number of blocks of each stage; each but the first halves the length.
        kernel: the length of a convolution, odd.
        init: the first weights, a key of `CONV1D_INITS`.
    """

    stages: tuple[tuple[int, int], ...]
    kernel: int = 5
    init: str = "he"

    @property
    def full_blocks(self) -> Blocks:
        """The block vectors of the global model."""
        return tuple((1.0,) * blocks for _, blocks in self.stages)

    @property
    def usual(self) -> Signature:
        """What it takes and gives where nothing else is said."""
        return Signature((3, 128), 6)

    @property
    def inits(self) -> Iterable[str]:
        """The names of first weights it knows."""
        return CONV1D_INITS

    def misfit(self, signature: Signature) -> str | None:
        """Say why it cannot take such inputs."""
        if signature.tokens or len(signature.input_shape) != 2:
            return "it takes series: channels and length, as in 3x128"
        shortest = 2 ** (len(self.stages) - 1)
        if signature.input_shape[1] < shortest:
            return f"series need {shortest} steps or more"
        return None

    def build(self, spec: SubmodelSpec, making: Making) -> "Conv1d":
        """Build the module of a spec."""
        return Conv1d(
            self,
            spec,
            channels=making.signature.input_shape[0],
            outputs=making.signature.outputs,
            norm=making.norm,
            learned_steps=making.learned_steps,
            init=making.init,
        )


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv1d:
    return nn.Conv1d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def _batch_norm(channels: int, norm: Norm) -> nn.BatchNorm1d:
    return nn.BatchNorm1d(channels) if norm == "tracked" else StaticBatchNorm1d(channels)


class Conv1dBlock(nn.Module):
    """Two convolutions and the stream around them: `relu(x + s * F(x))`."""

    def __init__(self, dim: int, inner: int, kernel: int, step: StepSize, norm: Norm) -> None:
        super().__init__()
        self.conv1 = _convolution(dim, inner, kernel)
        self.bn1 = _batch_norm(inner, norm)
        self.conv2 = _convolution(inner, dim, kernel)
        self.bn2 = _batch_norm(dim, norm)
        self.relu = nn.ReLU()
        self.step_size = step

    def forward(self, x: Tensor) -> Tensor:
        """Return `relu(x + s * F(x))`."""
        branch = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(self.step_size(x, branch))  # type: ignore[no-any-return]


class Stage(nn.Module):
    """A convolution to the stage's channels, which is never skipped, and the blocks behind it."""

    def __init__(self, enter: nn.Conv1d, norm: Norm, blocks: dict[str, nn.Module]) -> None:
        super().__init__()
        self.enter = nn.Sequential(enter, _batch_norm(enter.out_channels, norm), nn.ReLU())
        self.blocks = nn.ModuleDict(OrderedDict(blocks))


class Conv1dExit(Exit):
    """An early answer behind a block: the mean over time, and a linear layer."""

    def __init__(self, dim: int, outputs: int) -> None:
        super().__init__()
        self.fc = nn.Linear(dim, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        return self.fc(x.mean(2))  # type: ignore[no-any-return]


class Conv1d(nn.Module):
    """A network of one spec over series [batch, channels, length]."""

    def __init__(
        self,
        design: Conv1dDesign,
        spec: SubmodelSpec,
        *,
        channels: int,
        outputs: int,
        norm: Norm = "tracked",
        learned_steps: bool = True,
        init: str | None = None,
    ) -> None:
        super().__init__()
        self._spec = spec
        self.stage_channels = tuple(
            kept_channels(size, spec.stage_width(i)) for i, (size, _) in enumerate(design.stages)
        )
        last_exit = spec.exits[-1] if spec.exits else 0
        steps = [step for stage in spec.blocks for step in stage]
        ends_early = bool(last_exit) and not any(steps[last_exit:])
        widths = (channels, *self.stage_channels)
        depth = 0
        self.exits = nn.ModuleDict()
        for i, stage in enumerate(spec.blocks):
            if ends_early and depth >= last_exit:
                break
            blocks: dict[str, nn.Module] = {}
            for j, step in enumerate(stage):
                if step:
                    inner = kept_channels(design.stages[i][0], spec.block_width(i, j))
                    step_size = StepSize(step, learned=learned_steps)
                    kernel = design.kernel
                    blocks[str(j)] = Conv1dBlock(widths[i + 1], inner, kernel, step_size, norm)
                depth += 1
                if depth in spec.exits:
                    self.exits[str(depth)] = Conv1dExit(widths[i + 1], outputs)
            stride = 1 if i == 0 else 2
            enter = _convolution(widths[i], widths[i + 1], design.kernel, stride)
            self.add_module(f"stage{i + 1}", Stage(enter, norm, blocks))
        self.fc = None if ends_early else nn.Linear(self.stage_channels[-1], outputs)
        self.apply(CONV1D_INITS[init or design.init])

    def forward(self, x: Tensor) -> Tensor:
        """Return the deepest answer."""
        return self._answers(x, self._spec.exits[-1:] if self.fc is None else ())[-1]

    def forward_exits(self, x: Tensor) -> list[Tensor]:
        """Return every answer, the deepest last."""
        return self._answers(x, self._spec.exits)

    def _answers(self, x: Tensor, exits: tuple[int, ...]) -> list[Tensor]:
        answers = []
        depth = 0
        present = dict(self.named_children())
        for i, steps in enumerate(self._spec.blocks):
            stage = present.get(f"stage{i + 1}")
            if not isinstance(stage, Stage):
                break  # an exit was the end of the network
            x = stage.enter(x)
            for j in range(len(steps)):
                if str(j) in stage.blocks:
                    x = stage.blocks[str(j)](x)
                depth += 1
                if depth in exits:
                    answers.append(self.exits[str(depth)](x))
        if self.fc is not None:
            answers.append(self.fc(x.mean(2)))
        return answers


def _as_made(_module: nn.Module) -> None:
    """Leave torch's own first weights: uniform, bounded by the fan-in of a layer."""


def _he(module: nn.Module) -> None:
    if isinstance(module, nn.Conv1d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")


CONV1D_INITS: Mapping[str, Callable[[nn.Module], None]] = MappingProxyType(
    {"he": _he, "torch": _as_made}
)
"""First weights by name."""
