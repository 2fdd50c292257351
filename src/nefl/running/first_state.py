"""The first weights of a run: fresh, or those of a trained family."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nefl.artifacts.checkpoint import state_sha256
from nefl.artifacts.facts import read_facts
from nefl.artifacts.kept import read_kept
from nefl.artifacts.notes import CONFIG, stored_config
from nefl.config.learning import LORA
from nefl.elastic.adopt import MatchedRows, adopt, recalibrate
from nefl.elastic.file import load
from nefl.errors import ConfigError
from nefl.methods import family_of
from nefl.nesting.signature import Signature
from nefl.references import check_code
from nefl.running.assembly import Setting, assemble
from nefl.state import ServerState
from nefl.tasks.task import Task, rows_of

CALIBRATION, BATCH = 2048, 128
"""Training examples over which norm statistics are taken anew, and how many at once."""


@dataclass(frozen=True, eq=False)
class Trained:
    """What a run starts from.

    Attributes:
        state: the weights.
        kind: what sort of task they learned.
        signature: what the model takes and gives.
        class_names: the classes they tell apart.
        facts: what is known of their inputs, where that was noted.
        base: the checksum of what is frozen under them; empty where nothing is.
    """

    state: ServerState
    kind: str
    signature: Signature
    class_names: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    base: str = ""


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
    _check_inputs(setting.task, trained)
    if trained.base != setting.family.base_checksum:
        raise ConfigError(
            f"model.start {given}: its base is {trained.base[:12] or 'none'}, another one than "
            f"this run's ({setting.family.base_checksum[:12] or 'none'}), or its adapters have "
            "another alpha or seed; start from a run with the same"
        )
    state, new = adopt(trained.state, fresh, setting.family, _matched_rows(setting, trained))
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
    card = found.card
    return Trained(found.state, card.kind, card.signature, card.class_names, card.facts, card.base)


def _read_run(path: Path) -> Trained:
    """Read a run's newest weights; its data only where it did not note its classes."""
    config, facts = stored_config(path), read_facts(path)
    check_code(config, path, trusted=False)
    if facts is None:
        setting = assemble(config)
        task = setting.task
        state = read_kept(path, setting.family)
        base = setting.family.base_checksum
        return Trained(state, task.kind, task.signature, task.class_names, task.facts, base)
    # JSON has lists where shapes were tuples.
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in facts.arguments.items()}
    family = family_of(config.model, facts.signature, given)
    state, known = read_kept(path, family), facts.signature
    base = family.base_checksum
    return Trained(state, facts.kind, known, facts.class_names, facts.inputs, base)


def _check_inputs(new: Task, old: Trained) -> None:
    """Refuse weights whose inputs mean something else.

    Columns of another table would be learned on in the wrong places, without a word.

    Raises:
        ConfigError: naming what differs.
    """
    mine, theirs = new.signature, old.signature
    if bool(mine.tokens) != bool(theirs.tokens):
        here, there = ("tokens" if each.tokens else "numbers" for each in (mine, theirs))
        raise ConfigError(f"model.start: what it names takes {there}, this run's task {here}")
    known, asked = (facts.get("columns") for facts in (old.facts, new.facts))
    plain = len(mine.input_shape) < 3 and not mine.tokens
    if (plain and mine.input_shape[0] != theirs.input_shape[0]) or (
        known is not None and asked is not None and _shown(known) != _shown(asked)
    ):
        raise ConfigError(
            f"model.start: what it names was trained on inputs {theirs.shown} ({_shown(known)}), "
            f"this run has {mine.shown} ({_shown(asked)}); give the same columns in the same order"
        )


def _shown(columns: Sequence[Mapping[str, Any]] | None) -> str:
    parts = [f"{c['name']}{list(c['words']) if c['words'] else ''}" for c in columns or ()]
    return ", ".join(parts) or "columns without names"


def _matched_rows(setting: Setting, old: Trained) -> list[MatchedRows]:
    """Return which rows of tensors are which: of classes by name, of tokens by number."""
    task, signature = setting.task, setting.task.signature
    if setting.config.model.name == LORA:
        return []  # adapters have no row for a class or token: those are the base's
    # Asked of the model itself: what grows when there is one more has a row for each.
    wider = replace(signature, outputs=signature.outputs + 1)
    arguments = {
        name: wider.outputs if name in ("classes", "outputs") else value
        for name, value in task.model_arguments().items()
    }
    answers = _grown(setting, wider, arguments)
    known = {name: row for row, name in enumerate(old.class_names)}
    pairs = tuple((row, known[name]) for row, name in enumerate(task.class_names) if name in known)
    if not task.class_names and not old.class_names and old.kind == task.kind:
        pairs = _same(signature.outputs, old.signature.outputs)
    rows = [MatchedRows(answers, pairs)]
    if signature.tokens:
        more = replace(signature, tokens=signature.tokens + 1)
        tokens = _grown(setting, more, task.model_arguments()) - answers
        rows.append(MatchedRows(tokens, _same(signature.tokens, old.signature.tokens)))
    return rows


def _same(new: int, old: int) -> tuple[tuple[int, int], ...]:
    return tuple((row, row) for row in range(min(new, old)))


def _grown(setting: Setting, wider: Signature, arguments: Mapping[str, Any]) -> frozenset[str]:
    more = family_of(setting.config.model, wider, dict(arguments))
    larger, layout = more.global_layout, setting.family.global_layout
    return frozenset(
        n for n, info in layout.items() if n in larger and larger[n].shape != info.shape
    )


def _batches(setting: Setting) -> Iterator[Tensor]:
    """Yield clients' training examples as inputs, without augmentation, evenly chosen."""
    task, rows = setting.task, np.sort(setting.partition.indices)
    count = min(CALIBRATION, len(rows))
    chosen = rows[np.linspace(0, len(rows) - 1, count).round().astype(np.int64)]
    # Parts of even size: a batch of one has no variance.
    for part in np.array_split(chosen, max(1, count // BATCH)):
        yield task.make_inputs(rows_of(task.visible(task.train), part))
