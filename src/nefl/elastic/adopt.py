"""Giving a family the weights of another: other submodels, other classes, other data.

Every tensor is looked up by name in what was trained. A shared one is the leading corner of the old
one; those that a submodel has for itself come from the smallest old submodel with room for them.
Rows of the classifier go by the names of the classes, those of an embedding by the tokens. What no
old tensor can give stays fresh if it belongs to a classifier or an exit, and is an error otherwise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nefl.elastic.file import TrainedFamily
from nefl.errors import ConfigError, NestingError
from nefl.nesting.corners import corner, extract
from nefl.nesting.frozen import load_learned
from nefl.nesting.modules import Exit, measuring_norms, tracked_norms
from nefl.nesting.spec import Family, SubmodelSpec, holds
from nefl.state import ServerState, Tensors


@dataclass(frozen=True)
class MatchedRows:
    """Where classes, outputs or tokens stand: which tensors have a row for each, and which old row
    is which new one.

    Attributes:
        names: tensors with one row for each.
        pairs: (new row, old row) of each that both know.
    """

    names: frozenset[str]
    pairs: tuple[tuple[int, int], ...]


def adopt(
    old: ServerState, fresh: ServerState, family: Family, rows: Sequence[MatchedRows] = ()
) -> tuple[ServerState, set[str]]:
    """Give a family the weights of another.

    Returns:
        The state, and the names of the tensors that stayed fresh, wholly or in part.

    Raises:
        ConfigError: naming a tensor that the other family has not, or only smaller.
    """
    allowed = _may_be_fresh(family)
    matched = {name: each for each in rows for name in each.names}
    stayed: set[str] = set()
    shared: dict[str, Tensor] = {}
    for name, tensor in fresh.shared.items():
        if name in matched:
            shared[name] = _by_row(name, tensor, old, matched[name], stayed)
            continue
        found = _room_for(name, tensor, old)
        if found is None and name not in allowed:
            raise _missing(name, tensor, old)
        if found is None:
            stayed.add(name)
        shared[name] = tensor if found is None else found
    own = tuple(_own(mine, old, stayed) for mine in fresh.per_submodel)
    return ServerState(0, shared, own), stayed


def _may_be_fresh(family: Family) -> set[str]:
    names: set[str] = set()
    for number in range(1, len(family) + 1):
        for prefix, child in family.meta_module(number).named_modules():
            if isinstance(child, Exit):
                names |= {f"{prefix}.{name}" for name in child.state_dict()}
    return names


def _candidates(name: str, state: ServerState) -> Iterator[Tensor]:
    """Yield the tensors of a name, those of the smallest submodel first."""
    for own in state.per_submodel:
        if name in own:
            yield own[name]
    if name in state.shared:
        yield state.shared[name]


def _room_for(name: str, tensor: Tensor, state: ServerState) -> Tensor | None:
    for found in _candidates(name, state):
        if holds(found.shape, tensor.shape):
            return found[corner(tensor.shape)].to(tensor.dtype).clone()
    return None


def _own(mine: Tensors, state: ServerState, stayed: set[str]) -> dict[str, Tensor]:
    """Return a submodel's own tensors, from one old submodel if one has room for them all.

    A step size fits everywhere: only the whole tells which old submodel is the nearest.
    """
    complete = [
        old
        for old in state.per_submodel
        if all(
            name in old and holds(old[name].shape, tensor.shape) for name, tensor in mine.items()
        )
    ]
    complete.sort(key=lambda old: sum(tensor.numel() for tensor in old.values()))
    donor = ServerState(0, {}, (complete[0],)) if complete else state
    result: dict[str, Tensor] = {}
    for name, tensor in mine.items():
        found = _room_for(name, tensor, donor)
        if found is None:
            stayed.add(name)
        result[name] = tensor if found is None else found
    return result


def _by_row(
    name: str, tensor: Tensor, state: ServerState, rows: MatchedRows, stayed: set[str]
) -> Tensor:
    if len(rows.pairs) < len(tensor):
        stayed.add(name)
    result = tensor.clone()
    for found in _candidates(name, state):
        wide_enough = all(map(int.__ge__, found.shape[1:], tensor.shape[1:]))
        if found.ndim == tensor.ndim and wide_enough:
            for new, old in rows.pairs:
                result[new] = found[old][corner(tensor.shape[1:])]
            return result
    stayed.add(name)
    return result


def _missing(name: str, tensor: Tensor, state: ServerState) -> ConfigError:
    found = [tuple(other.shape) for other in _candidates(name, state)]
    there = f"has it with shape {found[-1]}" if found else "has no such tensor"
    return ConfigError(
        f"model.start: {name} is needed with shape {tuple(tensor.shape)}, what it names {there}; "
        "take the same model, or a smaller one, and inputs of the same kind"
    )


def recalibrate(state: ServerState, family: Family, batches: Sequence[Tensor]) -> ServerState:
    """Take the statistics of all tracked norms anew, over batches of inputs.

    Norms that each submodel has for itself get their own. A shared one gets those of the largest
    submodel that holds all of it: mostly the full one, which may lack the exits of others.
    """
    if not batches:
        return state
    shared, own = dict(state.shared), []
    for number in range(1, len(family) + 1):
        with torch.random.fork_rng(devices=[]):  # its first weights are not kept
            module = family.build(family.specs[number - 1])
        load_learned(module, extract(state, family, number))
        measured = norm_statistics(module, batches)
        names = family.own_names(number)
        own.append(
            {**state.per_submodel[number - 1], **{n: t for n, t in measured.items() if n in names}}
        )
        whole = (n for n in measured.keys() & shared.keys() if n not in names)
        shared |= {n: measured[n] for n in whole if measured[n].shape == shared[n].shape}
    return replace(state, shared=shared, per_submodel=tuple(own))


def norm_statistics(module: nn.Module, batches: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return running means and variances, by name, of the tracked norms that batches come by."""
    seen, norms = measure(module, batches), tracked_norms(module)
    return {
        f"{name}.{key}": tensor.clone()
        for name in norms
        if name in seen
        for key, tensor in norms[name].named_buffers()
        if key != "num_batches_tracked"
    }


def measure(module: nn.Module, batches: Sequence[Tensor]) -> set[str]:
    """Let all norms of a module measure batches of inputs, also those of early classifiers.

    Returns:
        The names of the tracked norms that the batches came by.
    """
    module.eval()
    every = getattr(module, "forward_exits", module)
    with torch.no_grad(), measuring_norms(module) as seen:
        for batch in batches:
            every(batch)
    return seen


def cut(trained: TrainedFamily, spec: SubmodelSpec, batches: Sequence[Tensor]) -> nn.Module:
    """Return a submodel that the family was not trained with, in evaluation mode.

    Args:
        trained: the family.
        spec: any whose corners exist in the full model.
        batches: inputs over which the statistics of its norms are taken, of some variety.

    Raises:
        NeflError: if the spec is no part of the full model.
    """
    family, state = cut_alone(trained.family, trained.state, spec)
    with torch.random.fork_rng(devices=[]):  # its first weights are not kept
        module = family.build(spec)
    load_learned(module, extract(state, family, 1))
    module.requires_grad_(False)
    measure(module, batches)
    return module


def cut_alone(
    trained: Family, state: ServerState, spec: SubmodelSpec
) -> tuple[Family, ServerState]:
    """Return a family of one submodel that need not have been trained, with its weights.

    What it has for itself comes from the smallest trained submodel with room for it. Shared norms
    have no other submodel beside them there, so that its statistics can be taken anew.

    Raises:
        NeflError: if the spec is no part of the full model.
    """
    whole = tuple(map(len, trained.specs[-1].blocks))
    if tuple(map(len, spec.blocks)) != whole:
        raise NestingError(f"blocks: the full model has {whole} in its stages; describe as many")
    family = Family(trained.build, (spec,), trained.per_submodel, "cut out of a trained family")
    found, _ = adopt(state, family.initial_state(0), family)
    return family, replace(found, round_number=state.round_number)
