"""Checkpoints: a server state in one safetensors file, with a checksum of its contents."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from nefl.artifacts.tensorfile import read_tensors, save_tensors
from nefl.errors import RunError
from nefl.files import write_atomically
from nefl.nesting.sets import memory_layout, sets_of
from nefl.nesting.spec import Family, Layout
from nefl.state import ServerState, Tensors

FORMAT = "nefl-state-1"
MAX_DIGITS = 9  # of a round's number; Python reads none of more than 4300


def state_sha256(state: ServerState) -> str:
    """Return a checksum over every name, dtype, shape and value of a state."""
    return tensors_sha256(flatten_state(state))


def tensors_sha256(tensors: Tensors) -> str:
    """Return a checksum over every name, dtype, shape and value of some tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        plain = tensor.detach().cpu().contiguous()
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else b"")
    return digest.hexdigest()


def save_state(path: Path, state: ServerState, **notes: str) -> None:
    """Write a state atomically, with notes in the file's metadata.

    Raises:
        RunError: if the disk does not take it.
    """
    metadata = {
        "format": FORMAT,
        "round_number": str(state.round_number),
        "state_sha256": state_sha256(state),
        **({"ledger_sha256": tensors_sha256(state.ledger)} if state.ledger else {}),
        **notes,
    }
    ledger = {f"ledger/{name}": tensor for name, tensor in state.ledger.items()}

    def fill(beside: Path) -> None:
        save_tensors(beside, flatten_state(state) | ledger, metadata)

    write_atomically(path, fill, follow_links=False)


def load_state(path: Path, family: Family) -> ServerState:
    """Read a state and check it against its checksum and the family.

    Raises:
        RunError: if the file is missing, damaged, or another model's.
    """
    metadata, tensors = read_tensors(path)
    if metadata.get("format") != FORMAT:
        raise RunError(f"{path}: is no nefl checkpoint (format {metadata.get('format')})")
    shared = {n.removeprefix("shared/"): t for n, t in tensors.items() if n.startswith("shared/")}
    own = [
        {
            n.removeprefix(f"submodel/{k}/"): t
            for n, t in tensors.items()
            if n.startswith(f"submodel/{k}/")
        }
        for k in range(1, len(family) + 1)
    ]
    check_layout(path, shared, family.global_layout)
    for k, mine in enumerate(own, start=1):
        layout = family.layout(k)
        check_layout(path, mine, {name: layout[name] for name in family.own_names(k)})
    memory = {n.removeprefix("memory/"): t for n, t in tensors.items() if n.startswith("memory/")}
    check_layout(path, memory, memory_layout(family, sets_of(memory)))
    ordered = {name: shared[name] for name in family.global_layout}
    number = metadata.get("round_number", "")
    if not number.isdecimal() or len(number) > MAX_DIGITS:
        raise RunError(f"{path}: is damaged: it does not say which round it is of")
    ledger = {n.removeprefix("ledger/"): t for n, t in tensors.items() if n.startswith("ledger/")}
    state = ServerState(int(number), ordered, tuple(own), memory, ledger)
    whole = state_sha256(state) == metadata.get("state_sha256")
    if not whole or (ledger and tensors_sha256(ledger) != metadata.get("ledger_sha256")):
        raise RunError(f"{path}: is damaged: its contents do not have its checksum")
    return state


def flatten_state(state: ServerState) -> dict[str, Tensor]:
    """Return all tensors under the names they have in a file."""
    tensors = {f"shared/{name}": tensor for name, tensor in state.shared.items()}
    for k, own in enumerate(state.per_submodel, start=1):
        tensors |= {f"submodel/{k}/{name}": tensor for name, tensor in own.items()}
    return tensors | {f"memory/{name}": tensor for name, tensor in state.memory.items()}


def check_layout(path: Path, tensors: Mapping[str, Tensor], layout: Layout) -> None:
    """Raise unless a file's tensors are those of a model."""
    for name in tensors.keys() ^ layout.keys():
        where = "the file" if name in tensors else "the model"
        raise RunError(f"{path}: belongs to another model: only {where} has {name}")
    for name, info in layout.items():
        found = tensors[name]
        if tuple(found.shape) != info.shape or found.dtype != info.dtype:
            raise RunError(
                f"{path}: belongs to another model: {name} is {found.dtype} "
                f"{tuple(found.shape)}, expected {info.dtype} {info.shape}"
            )
