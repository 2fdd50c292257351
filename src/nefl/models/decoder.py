"""Small transformers over tokens, nested in width, heads, feed-forward width and depth.

They are built like Llama's: root-mean-square norms, rotary positions, gated feed-forward networks,
no biases; names are those of Hugging Face's `LlamaForCausalLM`. Heads have an axis of their own in
every attention weight, so a leading corner keeps whole heads: reshaped, it is Llama's matrix. The
size of a head never changes, so a head means the same in every submodel.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional

from nefl.models.design import Making
from nefl.nesting.modules import Exit, StepSize
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Blocks, SubmodelSpec, kept_channels

EPSILON = 1e-6
ROTARY_BASE = 10_000.0


@dataclass(frozen=True)
class DecoderDesign:
    """What tells one of these transformers from another.

    Attributes:
        depth: blocks.
        dim: channels of the stream.
        heads: attention heads; a submodel keeps the leading ones.
        head_dim: channels of each head, the same in every submodel; even, for rotary positions.
        mlp_dim: hidden channels of the feed-forward network.
        init: the first weights, a key of `DECODER_INITS`.
    """

    depth: int
    dim: int
    heads: int
    head_dim: int
    mlp_dim: int
    init: str = "normal"

    @property
    def full_blocks(self) -> Blocks:
        """The block vectors of the global model."""
        return ((1.0,) * self.depth,)

    @property
    def usual(self) -> Signature:
        """What it takes and gives where nothing else is said."""
        return Signature((64,), 256, tokens=256, each_token=True)

    @property
    def inits(self) -> Iterable[str]:
        """The names of first weights it knows."""
        return DECODER_INITS

    def misfit(self, signature: Signature) -> str | None:
        """Say why it cannot take such inputs."""
        if not signature.tokens or len(signature.input_shape) != 1:
            return "it reads texts: tokens of some length"
        return None

    def build(self, spec: SubmodelSpec, making: Making) -> "Decoder":
        """Build the module of a spec."""
        taken = making.signature
        return Decoder(
            self,
            spec,
            vocabulary=taken.tokens,
            outputs=taken.outputs,
            each_token=taken.each_token,
            padding=taken.padding,
            learned_steps=making.learned_steps,
            init=making.init,
        )


class ToHeads(nn.Module):
    """The linear map from the stream to all heads; its weight is [heads, head_dim, dim]."""

    input_axes: ClassVar = {"weight": (2,)}

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, head_dim, dim))
        nn.init.uniform_(self.weight, -(dim**-0.5), dim**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, tokens, dim] to [batch, heads, tokens, head_dim]."""
        heads, head_dim, _ = self.weight.shape
        mapped = functional.linear(x, self.weight.flatten(0, 1))
        return mapped.view(*mapped.shape[:-1], heads, head_dim).transpose(1, 2)


class FromHeads(nn.Module):
    """The linear map from all heads back to the stream; its weight is [dim, heads, head_dim]."""

    input_axes: ClassVar = {"weight": (1, 2)}

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, heads, head_dim))
        nn.init.uniform_(self.weight, -((heads * head_dim) ** -0.5), (heads * head_dim) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, heads, tokens, head_dim] to [batch, tokens, dim]."""
        return functional.linear(x.transpose(1, 2).flatten(2), self.weight.flatten(1))


class SelfAttention(nn.Module):
    """Attention with rotary positions; causal, or over the whole text."""

    def __init__(self, dim: int, heads: int, head_dim: int, *, causal: bool) -> None:
        super().__init__()
        self._causal = causal
        self.q_proj = ToHeads(dim, heads, head_dim)
        self.k_proj = ToHeads(dim, heads, head_dim)
        self.v_proj = ToHeads(dim, heads, head_dim)
        self.o_proj = FromHeads(dim, heads, head_dim)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], hidden: Tensor | None) -> Tensor:
        """Attend; `hidden` is True where a token may be looked at, [batch, 1, 1, tokens]."""
        query, key = (_turned(each(x), turns) for each in (self.q_proj, self.k_proj))
        mixed = functional.scaled_dot_product_attention(
            query, key, self.v_proj(x), attn_mask=hidden, is_causal=self._causal
        )
        return self.o_proj(mixed)  # type: ignore[no-any-return]


def rotary_turns(tokens: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of every position's angles, each [tokens, head_dim]."""
    half = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    positions = torch.arange(tokens, device=device, dtype=torch.float32)
    angles = torch.outer(positions, ROTARY_BASE**-half).repeat(1, 2)
    return angles.cos(), angles.sin()


torch.fx.wrap("rotary_turns")  # angles depend on no value: exports take them as they are


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    cosine, sine = turns
    return x * cosine.to(x.dtype) + torch.cat((-second, first), dim=-1) * sine.to(x.dtype)


class FeedForward(nn.Module):
    """The gated network: down(silu(gate(x)) · up(x))."""

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, inner, bias=False)
        self.up_proj = nn.Linear(dim, inner, bias=False)
        self.down_proj = nn.Linear(inner, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map the stream to the stream."""
        gated = functional.silu(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(gated)  # type: ignore[no-any-return]


class DecoderBlock(nn.Module):
    """Attention and feed-forward network, each with a step size of its own."""

    def __init__(
        self,
        design: DecoderDesign,
        dim: int,
        width: float,
        step: float,
        *,
        causal: bool,
        learned: bool,
    ) -> None:
        super().__init__()
        heads = kept_channels(design.heads, width)
        self.input_layernorm = nn.RMSNorm(dim, eps=EPSILON)
        self.self_attn = SelfAttention(dim, heads, design.head_dim, causal=causal)
        self.post_attention_layernorm = nn.RMSNorm(dim, eps=EPSILON)
        self.mlp = FeedForward(dim, kept_channels(design.mlp_dim, width))
        self.attention_step_size = StepSize(step, learned=learned)
        self.mlp_step_size = StepSize(step, learned=learned)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], hidden: Tensor | None) -> Tensor:
        """Return the stream after both residual sums."""
        attended = self.self_attn(self.input_layernorm(x), turns, hidden)
        x = self.attention_step_size(x, attended)
        return self.mlp_step_size(x, self.mlp(self.post_attention_layernorm(x)))  # type: ignore[no-any-return]


class Trunk(nn.Module):
    """Embedding and blocks; the last norm, unless an exit ends the network."""

    def __init__(
        self, vocabulary: int, dim: int, blocks: dict[str, nn.Module], *, norm: bool
    ) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleDict(OrderedDict(blocks))
        self.norm = nn.RMSNorm(dim, eps=EPSILON) if norm else None


class Answer(nn.Module):
    """From the stream to logits: of every token, or of the mean over the text's tokens."""

    def __init__(self, dim: int, outputs: int, *, each_token: bool) -> None:
        super().__init__()
        self._each_token = each_token
        self.weight = nn.Parameter(torch.empty(outputs, dim))
        nn.init.uniform_(self.weight, -(dim**-0.5), dim**-0.5)

    def forward(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """Return [batch, tokens, outputs] or [batch, outputs]; `seen` is 1 for real tokens."""
        if not self._each_token:
            if seen is None:
                x = x.mean(1)
            else:
                weight = seen.to(x.dtype)[:, :, None]
                x = (x * weight).sum(1) / weight.sum(1).clamp(min=1)
        return functional.linear(x, self.weight)


class DecoderExit(Exit):
    """An early classifier behind a block."""

    def __init__(self, dim: int, outputs: int, *, each_token: bool) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(dim, eps=EPSILON)
        self.score = Answer(dim, outputs, each_token=each_token)

    def forward(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """Return the logits."""
        return self.score(self.norm(x), seen)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """A transformer of one spec over tokens. `forward` returns its deepest classifier's logits.

    Args:
        design: the global model.
        spec: the submodel.
        vocabulary: tokens it knows.
        outputs: logits for each answer.
        each_token: whether it answers for every token, looking only back (the next token), or
            once for the whole text, looking both ways (a class).
        padding: the token that fills up short texts, which nobody looks at; none where all
            tokens are real.
        learned_steps: whether step sizes are parameters.
        init: the first weights by name; the design's own if left out.
    """

    def __init__(
        self,
        design: DecoderDesign,
        spec: SubmodelSpec,
        *,
        vocabulary: int,
        outputs: int,
        each_token: bool,
        padding: int | None = None,
        learned_steps: bool = True,
        init: str | None = None,
    ) -> None:
        super().__init__()
        self._design, self._spec, self._padding = design, spec, padding
        (steps,) = spec.blocks
        dim = kept_channels(design.dim, spec.stage_width(0))
        self.stage_channels = (dim,)
        last_exit = spec.exits[-1] if spec.exits else 0
        ends_early = bool(last_exit) and not any(steps[last_exit:])
        blocks: dict[str, nn.Module] = {}
        for j, step in enumerate(steps):
            if step:
                blocks[str(j)] = DecoderBlock(
                    design,
                    dim,
                    spec.block_width(0, j),
                    step,
                    causal=each_token,
                    learned=learned_steps,
                )
        self.model = Trunk(vocabulary, dim, blocks, norm=not ends_early)
        self.exits = nn.ModuleDict(
            {str(e): DecoderExit(dim, outputs, each_token=each_token) for e in spec.exits}
        )
        self.lm_head = None if ends_early else Answer(dim, outputs, each_token=each_token)
        self.apply(DECODER_INITS[init or design.init])

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the deepest classifier's logits for tokens [batch, length]."""
        return self._logits(tokens, self._spec.exits[-1:] if self.lm_head is None else ())[-1]

    def forward_exits(self, tokens: Tensor) -> list[Tensor]:
        """Return the logits of every classifier, the deepest last."""
        return self._logits(tokens, self._spec.exits)

    def _logits(self, tokens: Tensor, exits: tuple[int, ...]) -> list[Tensor]:
        seen = None if self._padding is None else tokens != self._padding
        hidden = None if seen is None else seen[:, None, None, :]
        turns = rotary_turns(tokens.shape[1], self._design.head_dim, tokens.device)
        x = self.model.embed_tokens(tokens)
        logits = []
        for depth in range(1, len(self._spec.blocks[0]) + 1):
            name = str(depth - 1)
            if name in self.model.layers:
                x = self.model.layers[name](x, turns, hidden)
            if depth in exits:
                logits.append(self.exits[str(depth)](x, seen))
        if self.lm_head is not None and self.model.norm is not None:
            logits.append(self.lm_head(self.model.norm(x), seen))
        return logits


def _as_made(_module: nn.Module) -> None:
    """Leave the first weights that each layer makes for itself, bounded by its fan-in."""


def _normal(module: nn.Module) -> None:
    """Start all weights normal with deviation 0.02, as Llama and GPT-2 do."""
    if isinstance(module, ToHeads | FromHeads | Answer | nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


DECODER_INITS: Mapping[str, Callable[[nn.Module], None]] = MappingProxyType(
    {"normal": _normal, "torch": _as_made}
)
"""First weights by name."""
