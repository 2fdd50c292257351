"""Sums of a part of a round's clients in one safetensors file, to be sent and merged."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from nefl.artifacts.checkpoint import tensors_sha256
from nefl.artifacts.tensorfile import read_tensors, save_tensors
from nefl.errors import RunError
from nefl.files import write_atomically
from nefl.nesting.spec import Family
from nefl.parsing import parse_json
from nefl.state import Sums

FORMAT = "nefl-sums-1"


def save_sums(path: str | Path, sums: Sums, family: Family) -> None:
    """Write sums atomically, with a checksum.

    Args:
        path: the file.
        sums: what it shall hold.
        family: the family that was trained.

    Raises:
        RunError: if the disk does not take it.
    """
    tensors = _flatten(sums)
    notes = {
        "round_number": sums.round_number,
        "weighting": sums.weighting,
        "weights": sums.weights,
        "own_weights": sums.own_weights,
        "clients": sums.clients,
        "own_clients": sums.own_clients,
    }
    metadata = {
        "format": FORMAT,
        "family": family.fingerprint,
        "notes": json.dumps(notes),
        "sha256": _checksum(tensors, json.dumps(notes)),
    }

    def fill(beside: Path) -> None:
        save_tensors(beside, tensors, metadata)

    write_atomically(Path(path), fill, follow_links=False)


def load_sums(path: str | Path, family: Family) -> Sums:
    """Read sums, and see that they are whole and of this family; `Aggregate.merge` sees the rest.

    Raises:
        RunError: if the file is missing, damaged, no sums, or another family's.
    """
    metadata, tensors = read_tensors(Path(path))
    if metadata.get("format") != FORMAT:
        raise RunError(f"{path}: holds no sums of nefl (format {metadata.get('format')})")
    notes = metadata.get("notes", "")
    if _checksum(tensors, notes) != metadata.get("sha256"):
        raise RunError(f"{path}: is damaged: its contents do not have its checksum")
    if metadata.get("family") != family.fingerprint:
        raise RunError(
            f"{path}: holds sums of another family; make this one with the settings of the run"
        )
    try:
        known = parse_json(notes)
        weights, own_weights = _whole(known["weights"]), _whole(known["own_weights"])
        clients, own_clients = _whole(known["clients"]), _whole(known["own_clients"])
        round_number, weighting = int(known["round_number"]), str(known["weighting"])
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{path}: is damaged: its notes cannot be read") from None
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor
    own = tuple(groups.pop(str(k), {}) for k in range(1, len(family) + 1))
    shared = groups.pop("shared", {})
    for group in groups:
        raise RunError(f"{path}: holds sums of {group[:40]!r}, which the family does not have")
    return Sums(round_number, weighting, weights, own_weights, clients, own_clients, shared, own)


def _flatten(sums: Sums) -> dict[str, Tensor]:
    tensors = {f"shared/{name}": tensor for name, tensor in sums.shared.items()}
    for k, own in enumerate(sums.own, start=1):
        tensors |= {f"{k}/{name}": tensor for name, tensor in own.items()}
    return tensors


def _checksum(tensors: dict[str, Tensor], notes: str) -> str:
    return hashlib.sha256(f"{tensors_sha256(tensors)} {notes}".encode()).hexdigest()


def _whole(numbers: Sequence[Any]) -> tuple[int, ...]:
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise ValueError("weights are whole numbers")
    return tuple(numbers)
