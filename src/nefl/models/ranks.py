"""A family of adapters from its settings: ranks, targets, alpha, depths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from math import isclose, isfinite
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from nefl.config.learning import LORA
from nefl.errors import ConfigError, DataError
from nefl.extras import need
from nefl.models.base import EXTRA, Base, FolderBase, MadeBase, open_folder
from nefl.models.lora import SCALING, LoraBuilder, find_blocks, find_targets
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Blocks, Family, SubmodelSpec, build_on_meta
from nefl.references import import_function, is_reference

TARGETS = ("q_proj", "v_proj")
RANKS = (2, 4, 8, 16)


@dataclass(frozen=True)
class LoraOptions:
    """What `model.options` says of a family of adapters.

    Attributes:
        base: a folder in Hugging Face's layout, or one's own as `package.module:function`, a
            function that returns an nn.Module with its weights in it.
        targets: the linear maps that have adapters: ends of their names, or patterns.
        ranks: of the members, increasing.
        alpha: the scaling times the largest rank; or one for each rank, all with the same
            alpha/rank. Twice the rank if left out.
        depths: how many leading blocks of the base have adapters in each member; all if left out.
        cut: whether the base of a member ends there too.
        blocks: the name of the base's list of blocks; the longest if left out.
        head: the rank of one head, for methods whose adapters are made of heads; the smallest of
            the ranks if left out.
        seed: where A is drawn from by methods that never train it, and the bases of heads.
    """

    base: str = ""
    targets: tuple[str, ...] = TARGETS
    ranks: tuple[int, ...] = RANKS
    alpha: float | tuple[float, ...] | None = None
    depths: tuple[int, ...] | None = None
    cut: bool = False
    blocks: str | None = None
    head: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what makes no family."""
        if not self.targets:
            raise ConfigError("targets: name at least one, such as q_proj")
        falls = any(a > b or (a == b and not self.depths) for a, b in pairwise(self.ranks))
        if not self.ranks or min(self.ranks) < 1 or falls:
            raise ConfigError(f"ranks {self.ranks}: give increasing numbers from 1, as in 2, 4, 8")
        if self.depths is None and (self.cut or self.blocks is not None):
            raise ConfigError("cut and blocks belong to depths: say how deep each member is")
        if self.depths is not None and len(self.depths) != len(self.ranks):
            raise ConfigError(
                f"depths: {len(self.depths)} of them for {len(self.ranks)} ranks; give one each"
            )

    @property
    def scaling(self) -> float:
        """alpha/rank, the same at each rank.

        Raises:
            ConfigError: if it is not.
        """
        if self.alpha is None:
            return SCALING
        largest = max(self.ranks)
        if not isinstance(self.alpha, tuple):
            found = [self.alpha / largest]
        elif len(self.alpha) != len(self.ranks):
            raise ConfigError(
                f"alpha: {len(self.alpha)} of them for {len(self.ranks)} ranks; give one number "
                "for the largest, or one for each"
            )
        else:
            found = [alpha / rank for alpha, rank in zip(self.alpha, self.ranks, strict=True)]
        if not all(isfinite(each) and each > 0 for each in found):
            raise ConfigError(f"alpha {self.alpha}: give numbers above 0")
        if not all(isclose(each, found[-1]) for each in found):
            shown = ", ".join(
                f"{each:g} at rank {r}" for each, r in zip(found, self.ranks, strict=True)
            )
            raise ConfigError(
                f"alpha {self.alpha}: alpha/rank is {shown}; a corner means the same at each rank "
                f"only if it is one number: give one alpha, for rank {largest}"
            )
        return found[-1]


_OPTIONS = TypeAdapter(LoraOptions)


def read_lora_options(options: Mapping[str, Any]) -> LoraOptions:
    """Return the options of a family of adapters, checked.

    Raises:
        ConfigError: naming an option that there is not, or a wrong value.
    """
    known = [each.name for each in fields(LoraOptions)]
    for key in options:
        if key not in known:
            raise ConfigError(f"model.options.{key}: {LORA} takes {', '.join(known)}")
    try:
        return _OPTIONS.validate_python(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":
            raise ConfigError(f"model.options: {first['ctx']['error']}") from None
        key = str(first["loc"][0]) if first["loc"] else ""
        raise ConfigError(f"model.options.{key} is {options.get(key)!r}: {first['msg']}") from None


def lora_family(
    base: str | Path | Base,
    signature: Signature | None = None,
    *,
    fixed_a: bool = False,
    heads: bool = False,
    arguments: Mapping[str, Any] | None = None,
    **options: Any,
) -> Family:
    """Return the nested adapters of a frozen base, smallest rank first.

    Args:
        base: a folder in Hugging Face's layout, or `package.module:function`.
        signature: what its models take and give, where the data says so.
        fixed_a: whether A stays as it is drawn (FFA-LoRA).
        heads: whether adapters are made of heads, whose A and B stay as they are drawn (RAVAN).
        arguments: what a function is called with.
        options: further fields of `LoraOptions`.

    Raises:
        NeflError: if there is no such base or target, a rank is above a dimension, alpha/rank
            differs between ranks, or the base cannot take the data.
    """
    given = base if isinstance(base, FolderBase | MadeBase) else open_base(str(base), arguments)
    source = given.path if isinstance(given, FolderBase) else given.source
    chosen = read_lora_options({"base": source, **options})
    skeleton = build_on_meta(lambda _: given.skeleton(), SubmodelSpec(((1.0,),)))
    if signature is not None:
        _check_inputs(skeleton, signature, source)
    targets = find_targets(skeleton, chosen.targets, source)
    _check_ranks(skeleton, targets, max(chosen.ranks))
    blocks, specs = _specs(skeleton, chosen, source)
    builder = LoraBuilder(
        given,
        targets,
        max(chosen.ranks),
        chosen.scaling,
        None if signature is None else signature.outputs,
        blocks,
        chosen.cut,
        fixed_a or heads,
        _head(chosen, heads=heads),
        chosen.seed,
    )
    ranks = ", ".join(map(str, chosen.ranks))
    about = f"ranks {ranks} on {len(targets)} linear maps of {Path(source).name}"
    return Family(builder, specs, (), about)


def _head(chosen: LoraOptions, *, heads: bool) -> int:
    """Return the rank of one head, 0 where adapters have none.

    Raises:
        ConfigError: if there are none to have a rank, or a rank is not so many whole heads.
    """
    if not heads:
        if chosen.head is not None:
            raise ConfigError(
                "model.options.head: is the rank of a head, and adapters have heads under "
                "model.method lora-heads; take that, or leave it out"
            )
        return 0
    size = min(chosen.ranks) if chosen.head is None else chosen.head
    if size < 1 or any(rank % size for rank in chosen.ranks):
        raise ConfigError(
            f"ranks {chosen.ranks}: give multiples of model.options.head, the rank of one head, "
            f"which is {size}"
        )
    return size


def open_base(source: str, arguments: Mapping[str, Any] | None = None) -> Base:
    """Return the base that settings name.

    Raises:
        NeflError: if there is none.
    """
    if not source:
        raise ConfigError(
            "model.options.base: name the folder of the base, or package.module:function"
        )
    if not is_reference(source):
        return open_folder(source)
    frozen = tuple(
        sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in (arguments or {}).items())
    )
    return MadeBase(import_function(source), source, frozen)


def _check_inputs(base: nn.Module, signature: Signature, source: str) -> None:
    config = getattr(base, "config", None)
    if config is None or not hasattr(base, "generate"):
        return
    if not signature.tokens or not signature.each_token:
        raise ConfigError(
            f"{source}: foretells the next token, and the data is for something else; give texts "
            "for the next token, or a base of your own as package.module:function"
        )
    _check_tokenizer(Path(source), signature)
    size, longest = config.vocab_size, getattr(config, "max_position_embeddings", None)
    if signature.tokens > size:
        raise ConfigError(
            f"{source}: knows {size} tokens, the data has {signature.tokens}; give the base's own "
            "tokenizer (data.options.tokenizer)"
        )
    if longest is not None and signature.input_shape[0] > longest:
        raise ConfigError(
            f"{source}: takes texts of {longest} tokens, the data's have "
            f"{signature.input_shape[0]}; give a smaller data.options.length"
        )


def _check_tokenizer(folder: Path, signature: Signature) -> None:
    """Refuse data in other tokens than the base's own, whose numbers would mean nothing to it.

    Raises:
        ConfigError: naming both.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return
    try:
        known = need("tokenizers", EXTRA).Tokenizer.from_file(str(file)).get_vocab_size()
    except Exception as error:  # the library raises its own kind, of no common base
        raise DataError(f"{file}: is no tokenizer ({str(error)[:200]})") from None
    if known != signature.tokens:
        raise ConfigError(
            f"{folder}: has a tokenizer of {known} tokens, and the data is in "
            f"{signature.tokens}; set data.options.tokenizer to {folder}"
        )


def _check_ranks(base: nn.Module, targets: Sequence[str], rank: int) -> None:
    for name in targets:
        weight = base.get_submodule(name).weight
        assert isinstance(weight, torch.Tensor)  # noqa: S101 -- it is a linear map
        if rank > min(weight.shape):
            raise ConfigError(
                f"{name}: rank {rank} is above its dimension, {min(weight.shape)} of "
                f"{tuple(weight.shape)}; give smaller ranks, or leave it out of targets"
            )


def _specs(
    base: nn.Module, chosen: LoraOptions, source: str
) -> tuple[str, tuple[SubmodelSpec, ...]]:
    """Return the name of the list of blocks, where depths differ, and the members."""
    largest = max(chosen.ranks)
    widths = [(rank / largest,) for rank in chosen.ranks]
    if chosen.depths is None:
        return "", tuple(SubmodelSpec(((1.0,),), width) for width in widths)
    blocks = find_blocks(base, chosen.blocks, source)
    depth = len(base.get_submodule(blocks))  # type: ignore[arg-type]
    if any(not 1 <= kept <= depth for kept in chosen.depths):
        raise ConfigError(f"depths {chosen.depths}: {source} has {depth} blocks ({blocks})")

    def kept_blocks(kept: int) -> Blocks:
        return ((1.0,) * kept + (0.0,) * (depth - kept),)

    specs = zip(chosen.depths, widths, strict=True)
    return blocks, tuple(SubmodelSpec(kept_blocks(kept), width) for kept, width in specs)
