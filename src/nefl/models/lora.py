"""Low-rank adapters on a frozen base, nested by rank: a smaller rank is a leading corner.

An adapter adds `scaling · B·A` to a linear map's weight. The leading r rows of A and columns of B
are the adapter of rank r; the scaling, alpha/rank, is one number of the family, so that a corner
means the same at each rank. `peft` wraps the layers and gives the tensors their names.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import Tensor, nn

from nefl.errors import ConfigError
from nefl.models.base import Base, need_text
from nefl.nesting.adapters import Adapted, Factors
from nefl.nesting.spec import SubmodelSpec, kept_channels

ADAPTER = "default"
"""What `peft` calls the one adapter."""

SCALING = 2.0
"""alpha/rank where no alpha is given."""

LINEAR = ("Linear", "Conv1D")
"""Classes that take an adapter: torch's linear map, and the transposed one of GPT-2."""


class Heads(nn.Module):
    """What stands for B where an adapter is made of heads: the sum of all B_i·H_i·A_i.

    B_i and A_i are frozen, all B_i side by side and all A_i one below the other; the small H_i are
    trained. A smaller member has the leading heads. The product is linear in what is trained, so
    its average is exact at every head.

    Args:
        outputs: the rows of B.
        rank: of the adapter: all heads together.
        size: the rank of one head.
    """

    def __init__(self, outputs: int, rank: int, size: int) -> None:
        super().__init__()
        self.basis = nn.Parameter(torch.zeros(outputs, rank), requires_grad=False)
        self.cores = nn.Parameter(torch.zeros(rank // size, size, size))

    @property
    def weight(self) -> Tensor:
        """The matrix that an ordinary adapter would have for B, [outputs, rank]."""
        bases = self.basis.reshape(-1, *self.cores.shape[:2])
        return torch.einsum("ohr,hrs->ohs", bases, self.cores).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Return what B makes of A's outputs. [..., rank] → [..., outputs]."""
        parts = x.reshape(*x.shape[:-1], *self.cores.shape[:2])
        turned = torch.einsum("...hs,hrs->...hr", parts, self.cores).flatten(-2)
        return nn.functional.linear(turned, self.basis)


class LoraModel(Adapted):
    """A base with adapters; `forward` returns logits.

    Args:
        base: the base, with `peft`'s layers in it.
        rank: of its adapters.
        scaling: alpha/rank.
        outputs: leading logits that count; a base may have more tokens than the data.
        fixed_a: whether A is frozen too.
        source: where the base is from.
    """

    def __init__(
        self,
        base: nn.Module,
        rank: int,
        scaling: float,
        outputs: int | None,
        *,
        fixed_a: bool,
        source: Base,
    ) -> None:
        super().__init__()
        self.base = base
        self.source = source
        self.rank, self.scaling, self._outputs = rank, scaling, outputs
        self.cut = False  # whether the base ends before its last block
        self._causal = hasattr(base, "generate")  # a model of transformers
        if fixed_a:
            for name in self.adapted:
                self.get_parameter(name_of_a(name)).requires_grad_(False)
        else:
            self.factors = tuple(Factors(name_of_a(n), name_of_b(n)) for n in self.adapted)
        self.freeze()

    @property
    def adapted(self) -> tuple[str, ...]:
        """The modules of the base that have an adapter, by name."""
        return tuple(n for n, layer in self._layers() if ADAPTER in layer.lora_A)

    @property
    def transposed(self) -> bool:
        """Whether the weights under the adapters are [in, out], as GPT-2's are."""
        return any(type(layer.base_layer).__name__ == "Conv1D" for _, layer in self._layers())

    def _layers(self) -> list[tuple[str, Any]]:
        return [(n, child) for n, child in self.base.named_modules() if hasattr(child, "lora_A")]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits for tokens [batch, length], or whatever the base gives for its inputs."""
        if not self._causal:
            outputs = self.base(inputs)
            return outputs if isinstance(outputs, Tensor) else cast("Tensor", outputs.logits)
        return run_causal(self.base, inputs)[..., : self._outputs]

    def adapters(self) -> dict[str, Tensor]:
        """Return all A and B by the names that `peft` has for them, whatever they are made of."""
        layers = {name: self.base.get_submodule(name) for name in self.adapted}
        found: dict[str, Tensor] = {}
        for name, layer in layers.items():
            made: Any = layer
            found[name_of_a(name)] = made.lora_A[ADAPTER].weight.detach()
            found[name_of_b(name)] = made.lora_B[ADAPTER].weight.detach()
        return found

    def merged(self) -> nn.Module:
        """Return the base with the adapters added to its weights; this module is used up.

        The base's own tensors stay as they are: what changes is made anew.
        """
        for name, layer in self._layers():
            plain = layer.base_layer
            if ADAPTER in layer.lora_A:
                with torch.no_grad():
                    total = plain.weight + layer.get_delta_weight(ADAPTER).to(plain.weight.dtype)
                plain.weight = nn.Parameter(total, requires_grad=False)
            parent, _, last = name.rpartition(".")
            setattr(self.base.get_submodule(parent), last, plain)
        return self.base

    def plain(self) -> nn.Module:
        """Return a network without adapters that gives the same logits; this one is used up."""
        merged = self.merged()
        return Causal(merged, self._outputs).eval() if self._causal else merged.eval()


def name_of_a(module: str) -> str:
    """Return what the A of one of the base's modules is called."""
    return f"base.{module}.lora_A.{ADAPTER}.weight"


def name_of_b(module: str) -> str:
    """Return what the B of one of the base's modules is called."""
    return f"base.{module}.lora_B.{ADAPTER}.weight"


class Causal(nn.Module):
    """A causal language model of `transformers` as a plain network from tokens to logits."""

    def __init__(self, model: nn.Module, outputs: int | None = None) -> None:
        super().__init__()
        self.model, self._outputs = model, outputs

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of every token."""
        return run_causal(self.model, tokens)[..., : self._outputs]


def run_causal(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the logits that a causal language model gives for tokens [batch, length]."""
    # On the meta device there are no values to ask whether texts are packed together.
    length = tokens.shape[1]
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device="meta")
    given = {"attention_mask": mask} if tokens.is_meta else {}
    return cast("Tensor", model(input_ids=tokens, use_cache=False, **given).logits).float()


@dataclass(frozen=True)
class LoraBuilder:
    """Builds the members of a family of adapters; it can be sent to another process.

    Attributes:
        base: what the adapters are on.
        targets: the modules that have one, by name.
        rank: of the full member.
        scaling: alpha/rank, the same for all.
        outputs: leading logits that count.
        blocks: the name of the base's list of blocks, where members differ in depth.
        cut: whether a member's base ends with its blocks; otherwise only adapters are left out.
        fixed_a: whether A stays as it is drawn (FFA-LoRA).
        head: the rank of one head where adapters are made of heads, else 0.
        seed: where what is never trained is drawn from.
    """

    base: Base
    targets: tuple[str, ...]
    rank: int
    scaling: float
    outputs: int | None = None
    blocks: str = ""
    cut: bool = False
    fixed_a: bool = False
    head: int = 0
    seed: int = 0

    @property
    def base_checksum(self) -> str:
        """A checksum of all that is given: the base, the scaling, and what is never trained.

        It is the base's own where nothing else is told: all is trained, at the usual scaling.
        """
        told = [f"scaling {self.scaling!r}"] if self.scaling != SCALING else []
        told += [f"drawn from {self.seed}"] if self.fixed_a else []
        if not told:
            return self.base.checksum
        return hashlib.sha256(" ".join([self.base.checksum, *told]).encode()).hexdigest()

    def __call__(self, spec: SubmodelSpec) -> LoraModel:
        """Build the module of a spec: its width is the share of the full rank."""
        rank = kept_channels(self.rank, spec.stage_width(0))
        on_meta = torch.empty(0).is_meta
        base = self.base.skeleton() if on_meta else self.base.module()
        kept = sum(map(bool, spec.blocks[0]))
        if self.blocks and self.cut:
            cut_base(base, self.blocks, kept)
        mine = self.targets_of(kept)
        inject(base, mine if self.cut else self.targets, rank, self.scaling)
        for name in set() if self.cut else {*self.targets} - {*mine}:
            # Wrapped all the same: the tensors under an adapter have other names than without.
            layer: Any = base.get_submodule(name)
            layer.lora_A.pop(ADAPTER)
            layer.lora_B.pop(ADAPTER)
        for name in mine if self.head else ():
            layer = base.get_submodule(name)
            layer.lora_B[ADAPTER] = Heads(layer.lora_B[ADAPTER].out_features, rank, self.head)
        model = LoraModel(
            base, rank, self.scaling, self.outputs, fixed_a=self.fixed_a, source=self.base
        )
        model.cut = self.cut and kept < len(spec.blocks[0])
        if self.fixed_a and not on_meta:
            self._draw(model)
        return model

    def _draw(self, model: LoraModel) -> None:
        """Give a member what it never trains: of the full member's, the leading part."""
        for name in model.adapted:
            a = model.get_parameter(name_of_a(name)).data
            a.copy_(self._drawn(name_of_a(name), a.shape[1])[: a.shape[0]])
            if self.head:
                b = model.get_parameter(name_of_b(name).replace(".weight", ".basis")).data
                b.copy_(self._drawn(name_of_b(name), b.shape[0])[: b.shape[1]].T)

    def targets_of(self, kept: int) -> tuple[str, ...]:
        """Return the modules that have an adapter in a member with so many blocks."""
        within = re.compile(rf"{re.escape(self.blocks)}\.(\d+)(?:\.|$)")
        found = [(name, within.match(name)) for name in self.targets]
        return tuple(n for n, m in found if not self.blocks or m is None or int(m[1]) < kept)

    def _drawn(self, name: str, width: int) -> Tensor:
        """Return all rows of an A, or columns of a B, that is never trained.

        They are the same wherever they are drawn.
        """
        digest = hashlib.sha256(f"{self.seed} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
        bound = width**-0.5
        return torch.empty(self.rank, width).uniform_(-bound, bound, generator=generator)


def inject(base: nn.Module, targets: Sequence[str], rank: int, scaling: float) -> None:
    """Put adapters of a rank on modules of a base, in float32, B all zero."""
    peft = need_text("peft")
    every = "|".join(map(re.escape, targets))
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=scaling * rank,
        target_modules=f"(?:{every})",
        fan_in_fan_out=any(type(base.get_submodule(n)).__name__ == "Conv1D" for n in targets),
    )
    base.requires_grad_(False)
    peft.inject_adapter_in_model(config, base, ADAPTER)
    for name in targets:
        layer: Any = base.get_submodule(name)
        layer.lora_A.float()
        layer.lora_B.float()
        layer.scaling[ADAPTER] = scaling  # not by way of alpha, which would be rounded


def cut_base(base: nn.Module, blocks: str, kept: int) -> None:
    """Let a base end after its first blocks."""
    parent, _, last = blocks.rpartition(".")
    listed = cast("nn.ModuleList", base.get_submodule(blocks))
    setattr(base.get_submodule(parent), last, listed[:kept])
    config = getattr(base, "config", None)
    if config is not None:
        config.num_hidden_layers = kept
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:kept]


def find_targets(base: nn.Module, patterns: Sequence[str], source: str) -> tuple[str, ...]:
    """Return the linear maps of a base that patterns name, in the base's order.

    A pattern is the end of a module's name (`q_proj`), or has wildcards for all of it
    (`model.layers.?.mlp.*`).

    Raises:
        ConfigError: naming a pattern that no linear map has.
    """
    linear = [n for n, child in base.named_modules() if type(child).__name__ in LINEAR]
    found: set[str] = set()
    for pattern in patterns:
        named = {n for n in linear if fnmatchcase(n, pattern) or f".{n}".endswith(f".{pattern}")}
        if not named:
            ends = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise ConfigError(
                f"targets: {pattern!r} names no linear map of {source}; its linear maps end in "
                f"{ends or '(it has none)'}"
            )
        found |= named
    return tuple(name for name in linear if name in found)


def find_blocks(base: nn.Module, name: str | None, source: str) -> str:
    """Return the name of a base's list of blocks: the longest, unless one is named.

    Raises:
        ConfigError: if there is none.
    """
    lists = {n: child for n, child in base.named_modules() if isinstance(child, nn.ModuleList)}
    if name is not None and name in lists:
        return name
    if name is not None or not lists:
        raise ConfigError(
            f"blocks: {source} has no list {name or 'of blocks'}; there are "
            f"{', '.join(lists) or 'none, so it cannot be nested in depth'}"
        )
    longest: str = max(sorted(lists), key=lambda n: len(lists[n]))
    return longest
