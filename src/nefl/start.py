"""The first weights of a run: fresh, or those of a trained family."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from nefl.artifacts.checkpoint import state_sha256
from nefl.artifacts.facts import read_facts
from nefl.artifacts.kept import read_kept
from nefl.artifacts.notes import CONFIG, stored_config
from nefl.elastic.adopt import ClassRows, adopt, recalibrate
from nefl.elastic.file import load
from nefl.errors import ConfigError
from nefl.methods import family_of
from nefl.references import check_code
from nefl.setting import Setting, prepare
from nefl.state import ServerState
from nefl.tasks.task import rows_of

CALIBRATION, BATCH = 2048, 128
"""Training examples over which norm statistics are taken anew, and how many at once."""


@dataclass(frozen=True, eq=False)
class Trained:
    """What a run starts from: weights, and the names of the classes they tell apart."""

    state: ServerState
    class_names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class FirstState:
    """The weights that a run starts from.

    Attributes:
        state: the weights.
        source: for the log, where they come from, if from a trained family.
    """

    state: ServerState
    source: Mapping[str, object] | None = None


def first_state(setting: Setting) -> FirstState:
    """Return the weights that a run starts from: fresh, of `model.weights` or of `model.start`.

    Raises:
        NeflError: if what it names cannot be read, or a tensor is missing or too small there.
    """
    fresh = setting.initial_state()
    given = setting.config.model.start
    if given is None:
        return FirstState(fresh)
    trained = read_trained(Path(given))
    rows = _class_rows(setting, trained.class_names)
    state, new = adopt(trained.state, fresh, setting.family, rows)
    state = recalibrate(state, setting.family, list(_batches(setting)))
    weights = state_sha256(trained.state)
    return FirstState(state, {"path": given, "weights": weights, "fresh": sorted(new)})


def read_trained(path: Path) -> Trained:
    """Read a run's newest weights, or an elastic file.

    Raises:
        NeflError: if it is neither.
    """
    if (path / CONFIG).is_file():
        return _read_run(path)
    if not path.is_file():
        raise ConfigError(
            f"model.start {path}: is neither a run's folder nor an elastic file; give one of them"
        )
    found = load(path)
    return Trained(found.state, found.card.class_names)


def _read_run(path: Path) -> Trained:
    """Read a run's newest weights; its data only where it did not note its classes."""
    config, facts = stored_config(path), read_facts(path)
    check_code(config, path, trusted=False)
    if facts is None:
        setting = prepare(config)
        return Trained(read_kept(path, setting.family), setting.task.class_names)
    family = family_of(config.model, facts.signature)
    return Trained(read_kept(path, family), facts.class_names)


def _class_rows(setting: Setting, old: Sequence[str]) -> ClassRows:
    task = setting.task
    new = task.class_names
    known = {name: row for row, name in enumerate(old)}
    pairs = tuple((row, known[name]) for row, name in enumerate(new) if name in known)
    # Asked of the model itself: what grows when there is one more class has a row for each.
    wider = replace(task.signature, outputs=task.signature.outputs + 1)
    arguments = {
        name: wider.outputs if name in ("classes", "outputs") else value
        for name, value in task.model_arguments().items()
    }
    more = family_of(setting.config.model, wider, arguments)
    larger, layout = more.global_layout, setting.family.global_layout
    grown = {n for n, info in layout.items() if n in larger and larger[n].shape != info.shape}
    return ClassRows(frozenset(grown), pairs)


def _batches(setting: Setting) -> Iterator[Tensor]:
    """Yield clients' training examples as inputs, without augmentation, evenly chosen."""
    task, rows = setting.task, np.sort(setting.partition.indices)
    count = min(CALIBRATION, len(rows))
    chosen = rows[np.linspace(0, len(rows) - 1, count).round().astype(np.int64)]
    # Parts of even size: a batch of one has no variance.
    for part in np.array_split(chosen, max(1, count // BATCH)):
        yield task.make_inputs(rows_of(task.visible(task.train), part))
