"""The description of a submodel, and the family of submodels of one global model."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn

from nefl.errors import NestingError
from nefl.nesting.frozen import frozen_names, tensors_checksum
from nefl.nesting.modules import BatchNorm, Exit, StepSize
from nefl.own_code import place_of
from nefl.state import ServerState

Blocks = tuple[tuple[float, ...], ...]
Layout = Mapping[str, "TensorInfo"]

Role = Literal["parameter", "statistic", "frozen"]
"""What a tensor is for: to be learned; to hold what a module measured (a running mean, say); or to
be there, as the builder gives it, under what is learned."""


@dataclass(frozen=True)
class SubmodelSpec:
    """One member of a family: how wide it is and which residual blocks it keeps.

    Attributes:
        blocks: for each stage the initial step size of each residual block; 0 means absent.
        width: kept fraction of channels, one number for all stages or one for each stage.
        inner_width: kept fraction of the channels inside each residual branch, shaped like
            `blocks`, where it differs from the width of the stage.
        exits: after how many residual blocks, counted over the whole global model, this submodel
            has an early classifier. It ends at the last of them if its later blocks are absent.
    """

    blocks: Blocks
    width: float | tuple[float, ...] = 1.0
    inner_width: Blocks | None = None
    exits: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no model can be built from."""
        if not self.blocks or not all(self.blocks):
            raise NestingError(
                "blocks: every stage needs at least one entry, 0 for a skipped block"
            )
        for step in (step for stage in self.blocks for step in stage):
            if not (math.isfinite(step) and step >= 0):
                raise NestingError(f"blocks: step size {step} is not a finite number of 0 or more")
        if isinstance(self.width, tuple) and len(self.width) != len(self.blocks):
            raise NestingError(
                f"width: {len(self.width)} entries for {len(self.blocks)} stages; "
                "give one number, or one for each stage"
            )
        widths = [self.stage_width(stage) for stage in range(len(self.blocks))]
        if self.inner_width is not None:
            if [len(s) for s in self.inner_width] != [len(s) for s in self.blocks]:
                raise NestingError("inner_width: give one entry for each block of `blocks`")
            widths += [width for stage in self.inner_width for width in stage]
        for width in widths:
            if not 0 < width <= 1:
                raise NestingError(f"width {width} is not above 0 and at most 1")
        depth = sum(map(len, self.blocks))
        if list(self.exits) != sorted({e for e in self.exits if 0 < e < depth}):
            raise NestingError(
                f"exits {self.exits}: give increasing counts of blocks between 1 and {depth - 1}"
            )

    @property
    def is_full(self) -> bool:
        """Whether nothing is scaled: every block is there at full width."""
        inner = self.inner_width or ()
        return (
            all(step > 0 for stage in self.blocks for step in stage)
            and all(self.stage_width(stage) == 1 for stage in range(len(self.blocks)))
            and all(width == 1 for stage in inner for width in stage)
        )

    def stage_width(self, stage: int) -> float:
        """Return the kept fraction of the channels that a stage hands on."""
        return self.width[stage] if isinstance(self.width, tuple) else self.width

    def block_width(self, stage: int, block: int) -> float:
        """Return the kept fraction of the channels inside one residual branch."""
        if self.inner_width is None:
            return self.stage_width(stage)
        return self.inner_width[stage][block]


def kept_channels(channels: int, width: float) -> int:
    """Return how many leading channels stay, `ceil(width * channels)`."""
    # The tolerance keeps products such as 0.07 * 100 = 7.000000000000001 from gaining a channel.
    return max(1, math.ceil(width * channels - 1e-9))


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape and dtype of a tensor, without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        return self.numel * self.dtype.itemsize


Builder = Callable[[SubmodelSpec], nn.Module]


@dataclass(frozen=True)
class Family:
    """The ordered submodels of one global model, smallest first and the full one last.

    A family is made from a builder and a list of specs, and checks itself: every tensor of every
    submodel must be a leading corner of the global tensor of its name.

    Attributes:
        build: makes the module of a spec.
        specs: the submodels, in order.
        per_submodel: module classes whose tensors each submodel keeps for itself.
        source: where the specs come from, for people to read.
        norm_classes: the model's own classes of normalisation, besides torch's; the zero-extension
            check takes them for their `weight` and `bias`.
        vouched_for: why the zero-extension check must not be made, in so many words.
        within: for each submodel the smaller ones that its clients train inside it; none if empty.
            A run has them from its method (`nesting.inside.train_within`).

    Raises:
        NestingError: if the submodels do not nest; the message names the tensor at fault.
    """

    build: Builder
    specs: tuple[SubmodelSpec, ...]
    per_submodel: tuple[type[nn.Module], ...] = (BatchNorm, StepSize)
    source: str = "the user's own list"
    norm_classes: tuple[type[nn.Module], ...] = ()
    vouched_for: str = ""
    within: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        """Check the family as soon as it is made."""
        if not self.specs:
            raise NestingError("a family needs at least one spec; the full model comes last")
        if len({tuple(map(len, spec.blocks)) for spec in self.specs}) > 1:
            raise NestingError("blocks: all specs of a family describe the same stages and blocks")
        if self.within and len(self.within) != len(self.specs):
            raise NestingError(
                f"within: {len(self.within)} entries for {len(self.specs)} submodels; give one each"
            )
        check_layouts(self._layouts, self.global_layout)
        if len(self.specs) > 1 and not self.specs[-1].is_full:
            raise NestingError(
                f"the last of {len(self.specs)} specs is {self.specs[-1]}, not the full model: add "
                "a spec that keeps every block at width 1; a model that is scaled alone needs no "
                "other"
            )
        self._check_distinct()

    def _check_distinct(self) -> None:
        seen: dict[tuple[Blocks, tuple[tuple[str, TensorInfo], ...]], int] = {}
        for number, (spec, described) in enumerate(
            zip(self.specs, self._layouts, strict=True), start=1
        ):
            first = seen.setdefault((spec.blocks, tuple(described.tensors.items())), number)
            if first != number:
                raise NestingError(
                    f"submodels {first} and {number} are one and the same (equal blocks, tensors "
                    "and shapes): leave one out, or scale them further apart"
                )

    def __len__(self) -> int:
        return len(self.specs)

    def __reduce__(self) -> tuple[object, ...]:
        # What is derived is derived again where the family arrives.
        return Family, tuple(getattr(self, field.name) for field in fields(self))

    @cached_property
    def _modules(self) -> tuple[nn.Module, ...]:
        return tuple(build_on_meta(self.build, spec) for spec in self.specs)

    @cached_property
    def _layouts(self) -> tuple["_Described", ...]:
        return tuple(_describe(module, self.per_submodel) for module in self._modules)

    def layout(self, submodel: int) -> Layout:
        """Return the tensors of a submodel, numbered from 1, in the order of its state dict.

        What is frozen is not among them: it is nobody's to send, average or save.
        """
        return self._layouts[self.index(submodel)].tensors

    def frozen(self, submodel: int) -> Layout:
        """Return the tensors of a submodel that come with the builder and never change."""
        return self._layouts[self.index(submodel)].frozen

    @cached_property
    def base_checksum(self) -> str:
        """A checksum of all that is frozen, to be compared between machines; "" if nothing is.

        A builder that knows it has it as `base_checksum`; otherwise the full model is built once.
        """
        if not any(described.frozen for described in self._layouts):
            return ""
        known = getattr(self.build, "base_checksum", None)
        if isinstance(known, str):
            return known
        with torch.random.fork_rng(devices=[]):
            tensors = self.build(self.specs[-1]).state_dict()
        return tensors_checksum({name: tensors[name] for name in self.frozen(len(self))})

    def own_names(self, submodel: int) -> frozenset[str]:
        """Return the names of the tensors that a submodel shares with no other."""
        return self._layouts[self.index(submodel)].own

    def roles(self, submodel: int) -> Mapping[str, Role]:
        """Return what each tensor of a submodel is for, by name: buffers of modules are statistics.

        Raises:
            NestingError: if there is no such submodel.
        """
        return self._layouts[self.index(submodel)].roles

    def members_within(self, submodel: int) -> tuple[int, ...]:
        """Return the smaller submodels that are trained inside a submodel, by their numbers.

        Raises:
            NestingError: if there is no such submodel.
        """
        index = self.index(submodel)
        return self.within[index] if self.within else ()

    def meta_module(self, submodel: int) -> nn.Module:
        """Return the module of a submodel without storage, to ask for shapes and costs."""
        return self._modules[self.index(submodel)]

    def index(self, submodel: int) -> int:
        """Return the position in `specs` of a submodel numbered from 1.

        Raises:
            NestingError: if there is no such submodel.
        """
        if not 1 <= submodel <= len(self.specs):
            raise NestingError(f"submodel {submodel}: this family has 1 to {len(self.specs)}")
        return submodel - 1

    @cached_property
    def global_layout(self) -> Layout:
        """The shared tensors at their global size, in the order of the full model's state dict."""
        layout: dict[str, TensorInfo] = {}
        for described in reversed(self._layouts):
            for name, info in described.tensors.items():
                if name not in described.own:
                    known = layout.get(name)
                    if known is None or holds(info.shape, known.shape):
                        layout[name] = info
        return MappingProxyType(layout)

    @property
    def fingerprint(self) -> str:
        """A checksum of all names, shapes, dtypes and roles, to tell families apart."""
        digest = hashlib.sha256()
        for described in self._layouts:
            for name, info in described.tensors.items():
                own = name in described.own
                digest.update(f"{name} {info.shape} {info.dtype} {own}\n".encode())
            for name, info in described.frozen.items():
                digest.update(f"frozen {name} {info.shape} {info.dtype}\n".encode())
            digest.update(b"--\n")
        return digest.hexdigest()

    def initial_state(self, seed: int) -> ServerState:
        """Return freshly initialised weights: the full model's, and what each submodel keeps."""
        shared: dict[str, Tensor] = {}
        own: list[dict[str, Tensor]] = []
        with torch.random.fork_rng(devices=[]):
            for submodel in range(len(self), 0, -1):
                torch.manual_seed(seed)
                tensors = self.build(self.specs[submodel - 1]).state_dict()
                names = self.own_names(submodel)
                own.append({name: tensors[name].clone() for name in tensors if name in names})
                for name, info in self.global_layout.items():
                    found = tensors.get(name)
                    if name not in shared and found is not None and found.shape == info.shape:
                        shared[name] = found.clone()
        ordered = {name: shared[name] for name in self.global_layout}
        return ServerState(0, ordered, tuple(reversed(own)))


@dataclass(frozen=True)
class _Described:
    """The tensors of one submodel: their roles, which are its own, which belong to early exits."""

    tensors: Layout
    frozen: Layout
    roles: Mapping[str, Role]
    own: frozenset[str]
    exits: frozenset[str]
    params: int


def build_on_meta(build: Builder, spec: SubmodelSpec) -> nn.Module:
    """Build a module without storage; a builder that needs real values gets them, then loses them.

    Some models read values while they are built (`torch.linspace(...).tolist()` for drop rates is
    common), which the meta device cannot give.
    """
    module = None
    with suppress(NotImplementedError, RuntimeError), torch.device("meta"):
        module = build(spec)
    on_meta = module is not None
    if not on_meta:  # not while the first error is handled: it would be told twice
        module = build(spec)
    if not isinstance(module, nn.Module):
        raise NestingError(
            f"the builder ({place_of(build)}) returned {type(module).__name__} for {spec}; "
            "return an nn.Module"
        )
    return module if on_meta else module.to("meta")


def _describe(module: nn.Module, own_classes: tuple[type[nn.Module], ...]) -> _Described:
    every = {
        name: TensorInfo(tuple(tensor.shape), tensor.dtype)
        for name, tensor in module.state_dict().items()
    }
    given = frozen_names(module)
    buffers = {name for name, _ in module.named_buffers(remove_duplicate=False)}
    roles: dict[str, Role] = {n: "statistic" if n in buffers else "parameter" for n in every}
    roles |= dict.fromkeys(given, "frozen")
    own: set[str] = set()
    exits: set[str] = set()
    for prefix, child in module.named_modules():
        names = {f"{prefix}.{name}" if prefix else name for name in child.state_dict()}
        if isinstance(child, own_classes):
            own |= names
        elif isinstance(child, Exit):
            exits |= names
    params = sum(parameter.numel() for parameter in module.parameters())
    return _Described(
        MappingProxyType({n: info for n, info in every.items() if n not in given}),
        MappingProxyType({n: info for n, info in every.items() if n in given}),
        MappingProxyType(roles),
        frozenset(own - given),
        frozenset(exits),
        params,
    )


def holds(large: Sequence[int], small: Sequence[int]) -> bool:
    """Whether a tensor of one shape has a leading corner of another."""
    return len(large) == len(small) and all(a >= b for a, b in zip(large, small, strict=True))


def check_layouts(described: Sequence[_Described], global_layout: Layout) -> None:
    """Raise unless every submodel is made of leading corners of the global tensors."""
    full = described[-1]
    for number, (smaller, larger) in enumerate(pairwise(described), start=1):
        if smaller.params > larger.params:
            raise NestingError(
                f"submodel {number} has {smaller.params} parameters, submodel {number + 1} only "
                f"{larger.params}: order the specs by size, the full model last"
            )
    for number, submodel in enumerate(described, start=1):
        for name, info in submodel.tensors.items():
            _check_tensor(name, info, number, submodel, full, global_layout)
        for name, info in submodel.frozen.items():
            _check_frozen(name, info, number, full)


def _check_frozen(name: str, info: TensorInfo, number: int, full: _Described) -> None:
    whole = full.frozen.get(name)
    if whole is None or not holds(whole.shape, info.shape) or whole.dtype != info.dtype:
        there = "does not have it frozen" if whole is None else f"has {whole.dtype} {whole.shape}"
        raise NestingError(
            f"{name}: frozen in submodel {number}, {info.dtype} {info.shape}, and the full model "
            f"{there}; freeze the same tensors in all submodels, each the corner of the full one's"
        )


def _check_tensor(
    name: str,
    info: TensorInfo,
    number: int,
    submodel: _Described,
    full: _Described,
    global_layout: Layout,
) -> None:
    if name in full.tensors and (name in submodel.own) != (name in full.own):
        raise NestingError(
            f"{name}: per-submodel in one of submodels {number} and the full one, shared in the "
            "other; use the same kind of module in both"
        )
    role, in_full = submodel.roles[name], full.roles.get(name)
    if in_full is not None and role != in_full:
        raise NestingError(
            f"{name}: a {role} in submodel {number}, a {in_full} in the full one; register it as "
            "a parameter in both or as a buffer in both; freeze it in all submodels or in none"
        )
    if name in submodel.own:
        return
    if name not in full.tensors and name not in submodel.exits:
        raise NestingError(
            f"{name}: submodel {number} has it with shape {info.shape}, the full model does not; "
            "keep a block's name when others are skipped (layer1.3 stays layer1.3), add the tensor "
            "to the full model, or list its module's class in `per_submodel`"
        )
    whole = full.tensors.get(name, global_layout[name])
    if not holds(whole.shape, info.shape):
        raise NestingError(
            f"{name}: submodel {number} has shape {info.shape}, global {whole.shape}: a corner "
            "cannot be larger or have other axes; scale each axis down from the global size, and "
            "keep fused axes (heads, for instance) apart"
        )
    if whole.dtype != info.dtype:
        raise NestingError(
            f"{name}: submodel {number} has dtype {info.dtype}, global {whole.dtype}; "
            "build all submodels with one dtype"
        )
