"""A trained family as the start of the next run: other submodels, classes or data.

Every tensor is looked up by name in what was trained. A shared one is the leading corner of the old
one; those that a submodel has for itself come from the smallest old submodel with room for them.
Rows of the classifier go by the names of the classes. What no old tensor can give stays fresh if it
belongs to a classifier or an exit, and is an error otherwise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from nefl.artifacts.checkpoint import load_state, state_sha256
from nefl.artifacts.runfolder import CONFIG, find_checkpoint, stored_config
from nefl.data import make_transform
from nefl.elastic.file import load
from nefl.engines.site import augmentation
from nefl.errors import ConfigError
from nefl.methods import family_of
from nefl.nesting.corners import corner, extract
from nefl.nesting.modules import BatchNorm, Exit
from nefl.nesting.spec import Family
from nefl.setting import Setting, prepare
from nefl.state import ServerState, Tensors

CALIBRATION, BATCH = 2048, 128
"""Training examples over which norm statistics are taken anew, and how many at once."""


class Log(Protocol):
    """Takes note of an event."""

    def __call__(self, event: str, **content: object) -> None:
        """Take note."""


@dataclass(frozen=True, eq=False)
class Trained:
    """What a run starts from: weights, and the names of the classes they tell apart."""

    state: ServerState
    class_names: tuple[str, ...]


def first_state(setting: Setting, log: Log | None = None) -> ServerState:
    """Return the weights that a run starts from: fresh ones, or those of `model.start`.

    Raises:
        NeflError: if what it names cannot be read, or a tensor is missing or too small there.
    """
    fresh = setting.family.initial_state(setting.config.seed)
    given = setting.config.model.start
    if given is None:
        return fresh
    trained = read_trained(Path(given))
    rows = _class_rows(setting, trained.class_names)
    state, new = adopt(trained, fresh, setting.family, rows)
    state = recalibrate(state, setting.family, list(_batches(setting)))
    if log is not None:
        log("started_from", path=given, weights=state_sha256(trained.state), fresh=sorted(new))
    return state


def read_trained(path: Path) -> Trained:
    """Read a run's newest weights, or an elastic file.

    Raises:
        NeflError: if it is neither.
    """
    if (path / CONFIG).is_file():
        setting = prepare(stored_config(path))
        return Trained(
            load_state(find_checkpoint(path), setting.family), setting.dataset.class_names
        )
    if not path.is_file():
        raise ConfigError(
            f"model.start {path}: is neither a run's folder nor an elastic file; give one of them"
        )
    found = load(path)
    return Trained(found.state, found.card.class_names)


@dataclass(frozen=True)
class ClassRows:
    """Where classes stand: which tensors have a row for each, and which old row is which new one.

    Attributes:
        names: tensors with one row for each class.
        pairs: (new row, old row) of each class that both know.
    """

    names: frozenset[str]
    pairs: tuple[tuple[int, int], ...]


def _class_rows(setting: Setting, old: Sequence[str]) -> ClassRows:
    new = setting.dataset.class_names
    known = {name: row for row, name in enumerate(old)}
    pairs = tuple((row, known[name]) for row, name in enumerate(new) if name in known)
    # Asked of the model itself: what grows when there is one more class has a row for each.
    more = family_of(setting.config.model, len(new) + 1, setting.input_shape)
    larger, layout = more.global_layout, setting.family.global_layout
    grown = {n for n, info in layout.items() if n in larger and larger[n].shape != info.shape}
    return ClassRows(frozenset(grown), pairs)


def adopt(
    trained: Trained, fresh: ServerState, family: Family, rows: ClassRows
) -> tuple[ServerState, set[str]]:
    """Give a family the weights of another.

    Returns:
        The state, and the names of the tensors that stayed fresh, wholly or in part.

    Raises:
        ConfigError: naming a tensor that the other family has not, or only smaller.
    """
    allowed = _may_be_fresh(family)
    stayed: set[str] = set()
    shared: dict[str, Tensor] = {}
    for name, tensor in fresh.shared.items():
        if name in rows.names:
            shared[name] = _by_class(name, tensor, trained.state, rows, stayed)
            continue
        found = _room_for(name, tensor, trained.state)
        if found is None and name not in allowed:
            raise _missing(name, tensor, trained.state)
        if found is None:
            stayed.add(name)
        shared[name] = tensor if found is None else found
    own = tuple(_own(mine, trained.state, stayed) for mine in fresh.per_submodel)
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
        if _holds(found, tensor):
            return found[corner(tensor.shape)].to(tensor.dtype).clone()
    return None


def _holds(large: Tensor, small: Tensor) -> bool:
    return large.ndim == small.ndim and all(map(int.__ge__, large.shape, small.shape))


def _own(mine: Tensors, state: ServerState, stayed: set[str]) -> dict[str, Tensor]:
    """Return a submodel's own tensors, from one old submodel if one has room for them all.

    A step size fits everywhere: only the whole tells which old submodel is the nearest.
    """
    complete = [
        old
        for old in state.per_submodel
        if all(name in old and _holds(old[name], tensor) for name, tensor in mine.items())
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


def _by_class(
    name: str, tensor: Tensor, state: ServerState, rows: ClassRows, stayed: set[str]
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
        "take the same model, or a smaller one, and images with the same channels"
    )


def recalibrate(state: ServerState, family: Family, batches: Sequence[Tensor]) -> ServerState:
    """Take the statistics of all tracked norms anew, over batches of inputs.

    Norms that each submodel has for itself get their own. Shared ones get those of the full model,
    the only one that holds all of them.
    """
    shared, own = dict(state.shared), []
    for number in range(1, len(family) + 1):
        with torch.random.fork_rng(devices=[]):  # its first weights are not kept
            module = family.build(family.specs[number - 1])
        module.load_state_dict(extract(state, family, number))
        measured = norm_statistics(module, batches)
        names = family.own_names(number)
        own.append(
            {**state.per_submodel[number - 1], **{n: t for n, t in measured.items() if n in names}}
        )
        if number == len(family):
            shared |= {n: t for n, t in measured.items() if n in shared}
    return replace(state, shared=shared, per_submodel=tuple(own))


def norm_statistics(module: nn.Module, batches: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return running means and variances of tracked norms over batches, by name."""
    norms = {
        name: child
        for name, child in module.named_modules()
        if isinstance(child, BatchNorm) and child.track_running_stats
    }
    if not norms or not batches:
        return {}
    module.eval()
    for norm in norms.values():
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over all batches
        norm.train()
    with torch.no_grad():
        for batch in batches:
            module(batch)
    found: dict[str, Tensor] = {}
    for name, norm in norms.items():
        for key in ("running_mean", "running_var"):
            value = getattr(norm, key)
            assert isinstance(value, Tensor)  # noqa: S101 -- it tracks
            found[f"{name}.{key}"] = value.clone()
    return found


def _batches(setting: Setting) -> Iterator[Tensor]:
    """Yield clients' training examples as inputs, without augmentation, evenly chosen."""
    dataset, rows = setting.dataset, np.sort(setting.partition.indices)
    count = min(CALIBRATION, len(rows))
    chosen = rows[np.linspace(0, len(rows) - 1, count).round().astype(np.int64)]
    policy = augmentation(setting.config, dataset.name)
    statistics = dataset.mean, dataset.std, dataset.input_shape
    transform = make_transform(policy, *statistics, train=False)
    # Parts of even size: a batch of one has no variance.
    for part in np.array_split(chosen, max(1, count // BATCH)):
        yield transform(torch.from_numpy(dataset.train.images[part]), None)
