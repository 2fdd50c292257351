"""A task as files, for a client of any language: what it is given, and what it must give back.

A folder holds the program, the weights, the steps to take and a description with checksums; the
client writes its update beside them. docs/on-device.md is the contract.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from nefl.artifacts.trainable import TrainableCard
from nefl.client.training import LocalTraining, local_steps, own_generator
from nefl.errors import UpdateError
from nefl.ondevice.programs import Program
from nefl.parsing import parse_json
from nefl.state import ClientUpdate, Tensors, TrainTask
from nefl.tasks.task import Rows

TASK_FORM, UPDATE_FORM = "nefl-task-1", "nefl-update-1"
PROGRAM, WEIGHTS, STEPS = "program.pte", "weights.safetensors", "steps.safetensors"
TASK, UPDATE, UPDATED = "task.json", "update.json", "update.safetensors"
MAX_REPORT = 100_000
"""Bytes of an update's description."""


def write_task(
    folder: Path,
    task: TrainTask,
    program: Program,
    weights: Tensors,
    rows: Rows | None,
    how: LocalTraining,
) -> None:
    """Write all that a client needs for a task.

    Args:
        folder: where to, empty.
        task: whose work it is.
        program: the submodel's program.
        weights: the submodel's tensors, by name.
        rows: the client's examples; None for a device that has them and makes its steps itself.
        how: what all clients have in common.
    """
    program.save(folder / PROGRAM)
    ordered = {t.name: weights[t.name].contiguous() for t in program.card.layout}
    safetensors.torch.save_file(ordered, folder / WEIGHTS)
    steps = None if rows is None else _write_steps(folder / STEPS, task, rows, how)
    local, card = how.local, program.card
    description = {
        "form": TASK_FORM,
        **_name(task),
        "family": card.family,
        "examples": None if rows is None else len(next(iter(rows.values()))),
        "learning_rate": local.learning_rate,
        "momentum": local.momentum,
        "weight_decay": local.weight_decay,
        "batch_size": local.batch_size,
        "epochs": local.epochs,
        "rounds": how.rounds,
        "schedule": asdict(how.schedule),
        "steps": steps,
        "norms": [[norm.name, norm.values, norm.momentum] for norm in card.norms],
        "sha256": {
            name: _sha256(folder / name)
            for name in (PROGRAM, WEIGHTS, *(() if rows is None else (STEPS,)))
        },
    }
    (folder / TASK).write_text(json.dumps(description, indent=1), encoding="utf-8")


def _write_steps(
    path: Path, task: TrainTask, rows: Rows, how: LocalTraining
) -> list[tuple[int, float]]:
    """Write the batches of all steps; return examples and learning rate of each."""
    with own_generator(task, how) as generator:
        steps = list(local_steps(task, rows, how, generator))
    batches = {
        "inputs": torch.cat([step.inputs.contiguous() for step in steps]),
        "target": torch.cat([step.target for step in steps]),
    }
    safetensors.torch.save_file(batches, path)
    return [(len(step.inputs), step.learning_rate) for step in steps]


def read_update(folder: Path, task: TrainTask, card: TrainableCard) -> ClientUpdate:
    """Read what a client gave back.

    Args:
        folder: the task's folder.
        task: what it was asked for.
        card: of the program that it was given.

    Raises:
        UpdateError: naming the file or tensor that is missing, damaged or not as agreed.
    """
    report = _report(folder / UPDATE)
    for key, wanted in {"form": UPDATE_FORM, **_name(task)}.items():
        if report.get(key) != wanted:
            raise UpdateError(f"{UPDATE}: {key} is {report.get(key)!r}, expected {wanted!r}")
    path, sums = folder / UPDATED, report.get("sha256")
    try:
        found = _sha256(path)
        tensors = safetensors.torch.load_file(path)
    except (OSError, SafetensorError) as error:
        raise UpdateError(f"{UPDATED}: cannot be read ({error})") from None
    if not isinstance(sums, dict) or sums.get(UPDATED) != found:
        raise UpdateError(f"{UPDATED}: does not have the checksum that {UPDATE} names")
    examples, loss = report.get("examples"), report.get("loss")
    if not isinstance(examples, int) or examples < 1 or not isinstance(loss, int | float):
        raise UpdateError(f"{UPDATE}: examples {examples!r}, loss {loss!r}: expected numbers")
    trained = _whole(tensors, card)
    return ClientUpdate(task, trained, examples, {"loss": float(loss)})


def _name(task: TrainTask) -> dict[str, int]:
    return {"round": task.round_number, "client": task.client, "submodel": task.submodel}


def _report(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_REPORT:
            raise UpdateError(f"{UPDATE}: has more than {MAX_REPORT} bytes")
        report = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UpdateError(f"{UPDATE}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UpdateError(f"{UPDATE}: is no JSON ({error})") from None
    if not isinstance(report, dict):
        raise UpdateError(f"{UPDATE}: is no JSON object")
    return report


def _whole(tensors: dict[str, Tensor], card: TrainableCard) -> dict[str, Tensor]:
    """Return the tensors in the layout's order; what is left over, missing or other is named."""
    strange = sorted(tensors.keys() - {tensor.name for tensor in card.layout})
    if strange:
        raise UpdateError(f"{UPDATED}: holds {', '.join(strange)[:300]}, which it was not given")
    for known in card.layout:
        found = tensors.get(known.name)
        wanted = f"{known.dtype} {known.shape}"
        shown = None if found is None else f"{found.dtype} {tuple(found.shape)}"
        if shown != f"torch.{wanted}":
            raise UpdateError(f"{UPDATED}: {known.name} is {shown or 'missing'}, expected {wanted}")
    return {known.name: tensors[known.name] for known in card.layout}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
