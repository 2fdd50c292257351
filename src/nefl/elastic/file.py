"""The elastic file: a whole trained family in one safetensors file.

It holds the shared tensors once, at global size, and what each submodel has for itself. Nothing in
it is executed: a user's own model is only built from a family that the caller gives or names.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from nefl.artifacts.card import CARD_KEY, Card, card_from_json, card_to_json
from nefl.artifacts.checkpoint import check_layout, flatten_state
from nefl.artifacts.tensorfile import read_metadata, read_tensors, save_tensors
from nefl.config import ModelConfig
from nefl.elastic.budget import Cost
from nefl.errors import NeflError, RunError
from nefl.files import write_atomically
from nefl.methods import family_of, networks_of
from nefl.models.table import MODELS, ModelBuilder
from nefl.nesting.corners import corner
from nefl.nesting.frozen import load_learned
from nefl.nesting.modules import StaticBatchNorm
from nefl.nesting.spec import Family, build_on_meta
from nefl.references import is_reference
from nefl.state import ServerState, Tensors

FORMAT = "nefl-elastic-1"
OPENERS = {
    FORMAT: "it has a whole family: open it with nefl.load",
    "nefl-submodel-1": "it has one submodel: open it with nefl.open_model",
}
"""What opens each kind of safetensors file that nefl writes."""
MEAN, VARIANCE = ".measured_mean", ".measured_variance"


@dataclass(frozen=True, eq=False)
class TrainedFamily:
    """A trained family, ready to predict.

    Attributes:
        card: what it is, how good, what it costs.
        family: its specs and builder.
        state: its weights. A submodel's own tensors also hold what was measured for it anew.
    """

    card: Card
    family: Family
    state: ServerState

    def __len__(self) -> int:
        """Return the number of submodels."""
        return len(self.family)

    @cached_property
    def costs(self) -> tuple[Cost, ...]:
        """What each submodel costs, smallest first; latencies are not known yet."""
        return tuple(Cost(s.params, s.macs, s.memory) for s in self.card.submodels)

    def model(self, submodel: int, *, views: bool | None = None) -> nn.Module:
        """Return a submodel, numbered from 1, as a module in evaluation mode.

        Args:
            submodel: its number.
            views: True takes every weight as a view of the one copy, False copies all. Left out,
                weights are views where they lie in memory as a copy would, and copies where a
                view would be gathered anew at every call.

        Do not train it in place: it shares weights with the others.
        """
        spec = self.family.specs[self.family.index(submodel)]
        own = self.state.per_submodel[submodel - 1]
        tensors = {}
        for name, info in self.family.layout(submodel).items():
            if name in own:
                tensors[name] = own[name]
                continue
            view = self.state.shared[name][corner(info.shape)]
            keep = view.is_contiguous() if views is None else views
            tensors[name] = view if keep else view.clone(memory_format=torch.contiguous_format)
        if self.family.frozen(submodel):  # which the builder gives, whole
            with torch.random.fork_rng(devices=[]):
                module = self.family.build(spec)
        else:
            module = build_on_meta(self.family.build, spec)
            _give_unsaved_buffers(module, self.family, submodel)
        load_learned(module, tensors, assign=True)
        set_measured(module, own)
        return module.eval().requires_grad_(False)


def _give_unsaved_buffers(module: nn.Module, family: Family, submodel: int) -> None:
    """Buffers that are in no state dict have the values the builder gives them."""
    missing = module.state_dict().keys()
    unsaved = [name for name, _ in module.named_buffers() if name not in missing]
    if unsaved:
        with torch.random.fork_rng(devices=[]):
            built = dict(family.build(family.specs[submodel - 1]).named_buffers())
        for name in unsaved:
            place, _, last = name.rpartition(".")
            module.get_submodule(place).register_buffer(last, built[name], persistent=False)


def measured_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return what static norms have measured, by name."""
    found: dict[str, Tensor] = {}
    for name, child in module.named_modules():
        if isinstance(child, StaticBatchNorm) and child.measured is not None:
            found[name + MEAN], found[name + VARIANCE] = child.measured
    return found


def set_measured(module: nn.Module, tensors: Tensors) -> None:
    """Give static norms what was measured for them."""
    for name, child in module.named_modules():
        if isinstance(child, StaticBatchNorm) and name + MEAN in tensors:
            child.measured = tensors[name + MEAN], tensors[name + VARIANCE]


def save_family(path: Path, trained: TrainedFamily) -> None:
    """Write an elastic file, atomically.

    Raises:
        RunError: if it cannot be written.
    """
    weights = replace(trained.state, memory={})  # which is for going on, not for use
    tensors = {name: t.detach().cpu() for name, t in flatten_state(weights).items()}
    card = card_to_json(trained.card)
    metadata = {"format": FORMAT, CARD_KEY: card, "sha256": checksum(tensors, card)}
    write_atomically(path, lambda beside: save_tensors(beside, tensors, metadata))


def checksum(tensors: Tensors, card: str) -> str:
    """Return a checksum over a card and every name, dtype, shape and value."""
    digest = hashlib.sha256(card.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        plain = tensor.contiguous().reshape(-1)
        digest.update(plain.view(torch.uint8).numpy().data if plain.numel() else b"")
    return digest.hexdigest()


def read_checked(path: Path, format_name: str) -> tuple[Card, dict[str, Tensor]]:
    """Read the card and the tensors of a safetensors file that nefl wrote.

    Raises:
        RunError: if the file is missing, foreign, cut off or damaged.
    """
    metadata, tensors = read_tensors(path)
    found = metadata.get("format")
    if found != format_name:
        opener = OPENERS.get(found or "", "give a file that `nefl export` wrote")
        raise RunError(
            f"{path}: holds {found or 'no nefl format'}, expected {format_name}; {opener}"
        )
    if checksum(tensors, metadata.get(CARD_KEY, "")) != metadata.get("sha256"):
        raise RunError(
            f"{path}: is damaged: its contents do not have its checksum; copy it anew, or export "
            "it again"
        )
    return card_from_json(metadata.get(CARD_KEY), path), tensors


def is_elastic(path: Path) -> bool:
    """Return whether a safetensors file says that it holds a family.

    Raises:
        RunError: if it is missing, damaged or no such file.
    """
    return read_metadata(path).get("format") == FORMAT


def load(path: str | Path, family: Family | str | None = None) -> TrainedFamily:
    """Open an elastic file.

    Args:
        path: the file.
        family: the family of a user's own model, which no file may name code for; or the function
            that makes it, as `package.module:function`.

    Raises:
        RunError: if the file is missing, foreign, cut off, damaged or another model's.
    """
    card, tensors = read_checked(Path(path), FORMAT)
    try:
        if isinstance(family, str):
            family = _own_family(card, family)
        family = family or described_family(card)
    except NeflError as error:
        raise RunError(f"{path}: its family cannot be built: {error}") from None
    if len(card.submodels) != len(family):
        raise RunError(
            f"{path}: describes {len(card.submodels)} submodels, the family has {len(family)}"
        )
    if card.base and card.base != family.base_checksum:
        raise RunError(
            f"{path}: was trained on another base, or with another alpha or seed of adapters "
            f"({card.base[:12]}), than the family has ({family.base_checksum[:12] or 'none'}); "
            "give the family that it was trained with"
        )
    for number, (told, spec) in enumerate(zip(card.submodels, family.specs, strict=True), start=1):
        if told.spec != spec:
            raise RunError(
                f"{path}: its submodel {number} is {told.spec}, that of the family {spec}; give "
                "the family that it was trained with"
            )
    shared = _below("shared/", tensors)
    own = tuple(_below(f"submodel/{k}/", tensors) for k in range(1, len(family) + 1))
    check_layout(Path(path), shared, family.global_layout)
    for k, mine in enumerate(own, start=1):
        layout = family.layout(k)
        known = {name: tensor for name, tensor in mine.items() if not _is_measured(name)}
        expected = {n: i for n, i in layout.items() if n in family.own_names(k) or n in known}
        check_layout(Path(path), known, expected)
    ordered = {name: shared[name] for name in family.global_layout}
    return TrainedFamily(card, family, ServerState(card.rounds, ordered, own))


def _is_measured(name: str) -> bool:
    return name.endswith((MEAN, VARIANCE))


def _below(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def described_family(card: Card) -> Family:
    """Return the family that a card describes.

    Raises:
        NeflError: if its model is a user's own, or nefl knows no such model or method.
    """
    specs: Mapping[int, object] = {s.number: s.spec for s in card.submodels}
    if card.model not in MODELS:
        raise RunError(
            f"{card.model!r} is no model of nefl's own, and a file may not name code to run; name "
            "its function yourself: --model package.module:function, in Python nefl.load(file, "
            "family=…)"
        )
    method = networks_of(card.networks or card.method)
    build = ModelBuilder(card.model, card.signature, method.norm, method.learned_steps)
    if list(specs) != list(range(1, len(specs) + 1)):
        raise RunError(f"submodels {list(specs)}: expected 1, 2, … in order")
    specs_in_order = tuple(s.spec for s in card.submodels)
    return Family(build, specs_in_order, method.per_submodel, "an elastic file")


def _own_family(card: Card, reference: str) -> Family:
    """Return the submodels of a card in the family that a function of the user's own makes.

    Raises:
        NeflError: if there is no such function, or its family has not these submodels.
    """
    if not is_reference(reference):
        raise RunError(f"{reference!r}: give a function as package.module:function")
    family = family_of(ModelConfig(name=reference), card.signature, card.arguments or None)
    specs = tuple(submodel.spec for submodel in card.submodels)
    stages = [*map(len, family.specs[-1].blocks)]
    for number, spec in enumerate(specs, start=1):
        if [*map(len, spec.blocks)] != stages:  # others than its own may be given by a recipe
            raise RunError(f"{reference}: its family has no submodel like number {number}, {spec}")
    return replace(family, specs=specs, within=())
