"""A finished run as the source of exports: submodels as they are evaluated, and real examples."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from nefl.artifacts.card import Card, SubmodelCard
from nefl.artifacts.identity import check_unchanged, warn_of_changed_code
from nefl.artifacts.kept import read_kept
from nefl.artifacts.notes import stored_config
from nefl.asking.ways import card_facts
from nefl.engines.site import Site
from nefl.measured import MeasuredBy
from nefl.methods import method_of, networks_like
from nefl.nesting.corners import extract
from nefl.nesting.inference import inference_memory
from nefl.nesting.profile import count_frozen, count_macs, count_params
from nefl.references import check_code, is_reference
from nefl.running.assembly import Setting, assemble
from nefl.server.evaluate import BATCH
from nefl.state import ServerState
from nefl.tasks.dealing import subset
from nefl.tasks.task import Task, rows_of

MAX_ANSWERS = 2**26
"""Numbers that a model may answer with in one comparison."""


@dataclass(frozen=True, eq=False)
class Source:
    """A run's weights and data.

    Attributes:
        setting: what the run was made of, on the CPU; its family as it serves.
        state: the weights of one of its checkpoints.
    """

    setting: Setting
    state: ServerState

    @cached_property
    def _site(self) -> Site:
        return self.setting.site()

    def submodel(self, number: int) -> nn.Module:
        """Return a submodel with all that evaluation measures for it, as a plain network."""
        tensors = extract(self.state, self.setting.family, number)
        module = self._site.ready(number, tensors)
        return copy.deepcopy(module)

    def describe(self, number: int) -> SubmodelCard:
        """Return what a submodel is and costs."""
        family, signature = self.setting.family, self.setting.task.signature
        module = family.meta_module(number)
        return SubmodelCard(
            number,
            family.specs[family.index(number)],
            params=count_params(module) + count_frozen(module),
            macs=count_macs(module, signature)[1],
            memory=inference_memory(module, signature),
        )

    def card(self, numbers: tuple[int, ...]) -> Card:
        """Return the card of a file with these submodels."""
        config, task = self.setting.config, self.setting.task
        return Card(
            model=config.model.name,
            method=config.model.method,
            networks=networks_like(method_of(config.model)),
            data=task.name,
            rounds=self.state.round_number,
            kind=task.kind,
            signature=task.signature,
            metrics=tuple(MeasuredBy(m.name, m.better, percent=m.percent) for m in task.measured),
            submodels=tuple(map(self.describe, numbers)),
            # Classes may be those of a partition alone; an answer needs a name for each output.
            class_names=task.class_names if task.classes == task.signature.outputs else (),
            facts=card_facts(task.kind, task.facts),
            version=version("nefl"),
            arguments=task.model_arguments() if is_reference(config.model.name) else {},
            base=self.setting.family.base_checksum,
        )

    def test_batch(self, count: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of test examples, evenly spaced over the test set.

        They are fewer than asked for where that many answers would not fit into memory.
        """
        task = self.setting.task
        most = max(1, MAX_ANSWERS // prod(task.signature.output_shape))
        chosen = _spaced(subset(task, self.setting.config).test, min(count, most))
        rows = rows_of(task.visible(task.test), chosen)
        return task.make_inputs(rows), task.make_target(rows)

    def training_batch(self, count: int) -> Tensor:
        """Return inputs of clients' training examples, without augmentation."""
        rows = _spaced(np.sort(self.setting.partition.indices), count)
        task = self.setting.task
        return task.make_inputs(rows_of(task.visible(task.train), rows))


def _spaced(rows: np.ndarray, count: int) -> np.ndarray:
    places = np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(np.int64)
    return np.asarray(rows[places])


def open_run(
    run: str | Path, *, best: bool = False, trust_code: bool = False, task: Task | None = None
) -> Source:
    """Open a run to export from.

    Args:
        run: its folder; it may be in use.
        best: take the best checkpoint instead of the newest.
        trust_code: import what the run names, though it was never named on this machine.
        task: what the run learned, where that was given in memory with functions of its own.

    Raises:
        NeflError: if there is no such run or checkpoint, its data cannot be had or has changed, or
            it names code of a stranger's.
    """
    path = Path(run)
    config = stored_config(path)
    check_code(config, path, trusted=trust_code)
    # Exports are made and compared on the CPU, where every runtime can follow.
    engine = replace(config.engine, devices=("cpu",))
    local = replace(config.local, compile=False, precision="float32")
    setting = assemble(replace(config, engine=engine, local=local), task)
    check_unchanged(path, setting.data_identity())
    warn_of_changed_code(path, setting.code_identity())
    return Source(setting, read_kept(path, setting.family, best=best))


def predict_batches(model: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Return the outputs of many inputs, some at a time."""
    with torch.inference_mode():
        return torch.cat([model(batch) for batch in torch.split(inputs, BATCH)])
