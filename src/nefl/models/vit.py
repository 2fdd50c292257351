"""Vision transformers with step sizes, in any width and with any encoder blocks left out.

Names follow torchvision's. Its attention keeps queries, keys and values fused in one matrix, of
which a leading corner would be queries only; here the axes for query/key/value and for heads are
explicit, so that the corner rule holds and a torchvision checkpoint only needs reshaping.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from nefl.models.design import Making
from nefl.models.images import LARGE_IMAGES, LARGE_PATCH, SMALL_IMAGES, image_misfit
from nefl.nesting.modules import Exit, StepSize
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Blocks, SubmodelSpec, kept_channels


@dataclass(frozen=True)
class ViTDesign:
    """What tells one vision transformer from another.

    Attributes:
        depth: encoder blocks.
        heads: attention heads; a narrower submodel keeps them all and narrows each.
        head_dim: channels of each head; the stream has `heads * head_dim` channels.
        mlp_dim: hidden channels of the feed-forward network.
        patch: side of a patch in pixels.
        init: the first weights, a key of `VIT_INITS`.
    """

    depth: int
    heads: int
    head_dim: int
    mlp_dim: int
    patch: int
    init: str = "torchvision"

    @property
    def full_blocks(self) -> Blocks:
        """The block vectors of the global model."""
        return ((1.0,) * self.depth,)

    @property
    def usual(self) -> Signature:
        """What it takes and gives where nothing else is said."""
        return LARGE_IMAGES if self.patch >= LARGE_PATCH else SMALL_IMAGES

    @property
    def inits(self) -> Iterable[str]:
        """The names of first weights it knows."""
        return VIT_INITS

    def misfit(self, signature: Signature) -> str | None:
        """Say why it cannot take such inputs."""
        return image_misfit(signature, multiple=self.patch)

    def build(self, spec: SubmodelSpec, making: Making) -> "VisionTransformer":
        """Build the module of a spec."""
        channels, height, width = making.signature.input_shape
        return VisionTransformer(
            self,
            spec,
            classes=making.signature.outputs,
            input_shape=(channels, height, width),
            learned_steps=making.learned_steps,
            init=making.init,
        )


class SelfAttention(nn.Module):
    """Multi-head self-attention whose weights have their head axes explicit.

    Args:
        dim: channels of the stream.
        heads: attention heads.
        head_dim: channels of each head.
        full_head_dim: channels of each head in the global model. The temperature follows them, so
            that a narrower head is the leading part of the full one in all that it computes.
    """

    input_axes: ClassVar = {"in_proj_weight": (3,)}

    def __init__(
        self, dim: int, heads: int, head_dim: int, full_head_dim: int | None = None
    ) -> None:
        super().__init__()
        self._scale = (full_head_dim or head_dim) ** -0.5
        self.in_proj_weight = nn.Parameter(torch.empty(3, heads, head_dim, dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3, heads, head_dim))
        self.out_proj = HeadsToStream(dim, heads, head_dim)
        # Glorot's rule for the fused matrix, as torch's own attention has it.
        bound = (6 / (dim + 3 * heads * head_dim)) ** 0.5
        nn.init.uniform_(self.in_proj_weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Attend; [batch, tokens, dim] to the same."""
        batch, tokens, _ = x.shape
        _, heads, head_dim, _ = self.in_proj_weight.shape
        fused = functional.linear(x, self.in_proj_weight.flatten(0, 2), self.in_proj_bias.flatten())
        query, key, value = fused.view(batch, tokens, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, scale=self._scale)
        return self.out_proj(mixed.transpose(1, 2))  # type: ignore[no-any-return]


class HeadsToStream(nn.Module):
    """The linear map from all heads back to the stream, with its head axes explicit."""

    input_axes: ClassVar = {"weight": (1, 2)}

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, heads, head_dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        bound = (heads * head_dim) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, tokens, heads, head_dim] to [batch, tokens, dim]."""
        return functional.linear(x.flatten(2), self.weight.flatten(1), self.bias)


class EncoderBlock(nn.Module):
    """Pre-norm attention and feed-forward network, each with a step size of its own."""

    def __init__(
        self, design: ViTDesign, dim: int, width: float, step: float, *, learned: bool
    ) -> None:
        super().__init__()
        mlp_dim = kept_channels(design.mlp_dim, width)
        self.ln_1 = nn.LayerNorm(dim, eps=1e-6)
        self.self_attention = SelfAttention(
            dim, design.heads, kept_channels(design.head_dim, width), design.head_dim
        )
        self.ln_2 = nn.LayerNorm(dim, eps=1e-6)
        # Numbered as in torchvision, whose network has dropout in between.
        self.mlp = nn.Sequential(
            OrderedDict(
                [("0", nn.Linear(dim, mlp_dim)), ("1", nn.GELU()), ("3", nn.Linear(mlp_dim, dim))]
            )
        )
        self.attention_step_size = StepSize(step, learned=learned)
        self.mlp_step_size = StepSize(step, learned=learned)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream after both residual sums."""
        x = self.attention_step_size(x, self.self_attention(self.ln_1(x)))
        return self.mlp_step_size(x, self.mlp(self.ln_2(x)))  # type: ignore[no-any-return]


class ViTExit(Exit):
    """An early classifier behind an encoder block."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the class token."""
        return self.head(self.ln(x)[:, 0])  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Positions, encoder blocks and, unless an exit ends the network, the last norm."""

    def __init__(self, tokens: int, dim: int, blocks: dict[str, nn.Module], *, norm: bool) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, dim).normal_(std=0.02))
        self.layers = nn.Sequential(OrderedDict(blocks))
        self.ln = nn.LayerNorm(dim, eps=1e-6) if norm else None


class VisionTransformer(nn.Module):
    """A vision transformer of one spec. `forward` returns the logits of its deepest classifier."""

    def __init__(
        self,
        design: ViTDesign,
        spec: SubmodelSpec,
        *,
        classes: int,
        input_shape: tuple[int, int, int],
        learned_steps: bool = True,
        init: str | None = None,
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        self._spec = spec
        (steps,) = spec.blocks
        dim = design.heads * kept_channels(design.head_dim, spec.stage_width(0))
        self.stage_channels = (dim,)
        last_exit = spec.exits[-1] if spec.exits else 0
        ends_early = bool(last_exit) and not any(steps[last_exit:])
        blocks: dict[str, nn.Module] = {}
        for j, step in enumerate(steps):
            if step:
                blocks[f"encoder_layer_{j}"] = EncoderBlock(
                    design, dim, spec.block_width(0, j), step, learned=learned_steps
                )
        tokens = 1 + (height // design.patch) * (width // design.patch)
        self.conv_proj = nn.Conv2d(channels, dim, design.patch, design.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.encoder = Encoder(tokens, dim, blocks, norm=not ends_early)
        self.exits = nn.ModuleDict({str(depth): ViTExit(dim, classes) for depth in spec.exits})
        self.heads = None
        if not ends_early:
            self.heads = nn.Sequential(OrderedDict([("head", nn.Linear(dim, classes))]))
        VIT_INITS[init or design.init](self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the deepest classifier."""
        return self._logits(x, self._spec.exits[-1:] if self.heads is None else ())[-1]

    def forward_exits(self, x: Tensor) -> list[Tensor]:
        """Return the logits of every classifier, the deepest last."""
        return self._logits(x, self._spec.exits)

    def _logits(self, x: Tensor, exits: tuple[int, ...]) -> list[Tensor]:
        logits = []
        x = self._embed(x)
        present = dict(self.encoder.layers.named_children())
        for depth in range(1, len(self._spec.blocks[0]) + 1):
            if (block := present.get(f"encoder_layer_{depth - 1}")) is not None:
                x = block(x)
            if depth in exits:
                logits.append(self.exits[str(depth)](x))
        if self.heads is not None and self.encoder.ln is not None:
            logits.append(self.heads(self.encoder.ln(x)[:, 0]))
        return logits

    def _embed(self, x: Tensor) -> Tensor:
        """Turn images into tokens with positions, the class token first."""
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        token = self.class_token.expand(x.shape[0], -1, -1)  # `len` cannot be traced
        return torch.cat([token, patches], dim=1) + self.encoder.pos_embedding


def _as_made(_model: VisionTransformer) -> None:
    """Leave torch's own first weights."""


def _as_torchvision(model: VisionTransformer) -> None:
    """Start patches, feed-forward networks and classifiers as torchvision does.

    A classifier of zeros lets all classes be equally likely before the first step.
    """
    nn.init.trunc_normal_(model.conv_proj.weight, std=model.conv_proj.weight[0].numel() ** -0.5)
    zeros = [model.conv_proj.bias]
    for child in model.modules():
        if isinstance(child, EncoderBlock):
            for layer in child.mlp.children():
                if isinstance(layer, nn.Linear):
                    nn.init.xavier_uniform_(layer.weight)
                    nn.init.normal_(layer.bias, std=1e-6)
        elif isinstance(child, ViTExit):
            zeros += [child.head.weight, child.head.bias]
    if model.heads is not None:
        zeros += list(model.heads.parameters())
    for tensor in zeros:
        if tensor is not None:
            nn.init.zeros_(tensor)


VIT_INITS: Mapping[str, Callable[[VisionTransformer], None]] = MappingProxyType(
    {"torchvision": _as_torchvision, "torch": _as_made}
)
"""First weights by name."""
