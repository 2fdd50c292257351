"""Residual networks of linear layers for tables, nested in width and depth.

A table's columns enter by one linear layer; each block adds `s * F(x)` to the stream, F being two
linear layers with a layer norm and a ReLU before each.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor, nn

from nefl.models.design import Making
from nefl.nesting.modules import Exit, StepSize
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Blocks, SubmodelSpec, kept_channels


@dataclass(frozen=True)
class MLPDesign:
    """What tells one of these networks from another.

    Attributes:
        dim: channels of the stream.
        inner: channels inside a block.
        depth: blocks.
        init: the first weights, a key of `MLP_INITS`.
    """

    dim: int
    inner: int
    depth: int
    init: str = "torch"

    @property
    def full_blocks(self) -> Blocks:
        """The block vectors of the global model."""
        return ((1.0,) * self.depth,)

    @property
    def usual(self) -> Signature:
        """What it takes and gives where nothing else is said."""
        return Signature((30,), 2)

    @property
    def inits(self) -> Iterable[str]:
        """The names of first weights it knows."""
        return MLP_INITS

    def misfit(self, signature: Signature) -> str | None:
        """Say why it cannot take such inputs."""
        if signature.tokens or len(signature.input_shape) != 1:
            return "it takes rows of a table: as many numbers as it has columns"
        return None

    def build(self, spec: SubmodelSpec, making: Making) -> "MLP":
        """Build the module of a spec."""
        return MLP(
            self,
            spec,
            features=making.signature.input_shape[0],
            outputs=making.signature.outputs,
            learned_steps=making.learned_steps,
            init=making.init,
        )


class MLPBlock(nn.Module):
    """Two linear layers, each behind a norm and a ReLU, added to the stream."""

    def __init__(self, dim: int, inner: int, step: StepSize) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, inner, bias=False)
        self.ln2 = nn.LayerNorm(inner)
        self.fc2 = nn.Linear(inner, dim)
        self.relu = nn.ReLU()
        self.step_size = step

    def forward(self, x: Tensor) -> Tensor:
        """Return `x + s * F(x)`."""
        inner = self.fc1(self.relu(self.ln1(x)))
        return self.step_size(x, self.fc2(self.relu(self.ln2(inner))))  # type: ignore[no-any-return]


class MLPAnswer(nn.Module):
    """Norm, ReLU and the last linear layer."""

    def __init__(self, dim: int, outputs: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(dim)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(dim, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        return self.fc(self.relu(self.ln(x)))  # type: ignore[no-any-return]


class MLPExit(Exit):
    """An early answer behind a block."""

    def __init__(self, dim: int, outputs: int) -> None:
        super().__init__()
        self.answer = MLPAnswer(dim, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        return self.answer(x)  # type: ignore[no-any-return]


class MLP(nn.Module):
    """A network of one spec over rows of numbers. `forward` returns its deepest answer."""

    def __init__(
        self,
        design: MLPDesign,
        spec: SubmodelSpec,
        *,
        features: int,
        outputs: int,
        learned_steps: bool = True,
        init: str | None = None,
    ) -> None:
        super().__init__()
        self._spec = spec
        (steps,) = spec.blocks
        dim = kept_channels(design.dim, spec.stage_width(0))
        self.stage_channels = (dim,)
        last_exit = spec.exits[-1] if spec.exits else 0
        ends_early = bool(last_exit) and not any(steps[last_exit:])
        self.stem = nn.Linear(features, dim)
        self.blocks = nn.ModuleDict(
            OrderedDict(
                (
                    str(j),
                    MLPBlock(
                        dim,
                        kept_channels(design.inner, spec.block_width(0, j)),
                        StepSize(step, learned=learned_steps),
                    ),
                )
                for j, step in enumerate(steps)
                if step
            )
        )
        self.exits = nn.ModuleDict({str(e): MLPExit(dim, outputs) for e in spec.exits})
        self.answer = None if ends_early else MLPAnswer(dim, outputs)
        self.apply(MLP_INITS[init or design.init])

    def forward(self, x: Tensor) -> Tensor:
        """Return the deepest answer for rows [batch, features]."""
        return self._answers(x, self._spec.exits[-1:] if self.answer is None else ())[-1]

    def forward_exits(self, x: Tensor) -> list[Tensor]:
        """Return every answer, the deepest last."""
        return self._answers(x, self._spec.exits)

    def _answers(self, x: Tensor, exits: tuple[int, ...]) -> list[Tensor]:
        answers = []
        x = self.stem(x)
        for depth in range(1, len(self._spec.blocks[0]) + 1):
            if str(depth - 1) in self.blocks:
                x = self.blocks[str(depth - 1)](x)
            if depth in exits:
                answers.append(self.exits[str(depth)](x))
        if self.answer is not None:
            answers.append(self.answer(x))
        return answers


def _as_made(_module: nn.Module) -> None:
    """Leave torch's own first weights: uniform, bounded by the fan-in of a layer."""


def _he(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")


MLP_INITS: Mapping[str, Callable[[nn.Module], None]] = MappingProxyType(
    {"torch": _as_made, "he": _he}
)
"""First weights by name."""
