"""Safetensors files as nefl reads and writes them: sound headers, tensors that share no memory."""

import stat
import struct
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nefl.errors import RunError
from nefl.files import kind_of

MAX_HEADER = 16 * 2**20
"""Bytes of names, shapes and notes; a family of 100,000 classes needs two million."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors by name; tied ones are written once for each of their names."""
    save_file(_apart(tensors), path, metadata)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors on the CPU of which no two lie in the same memory."""
    seen: set[int] = set()
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        place = plain.untyped_storage().data_ptr()
        result[name] = plain.clone() if place in seen else plain
        seen.add(place)
    return result


def read_metadata(path: Path) -> dict[str, str]:
    """Return the notes of a safetensors file.

    Raises:
        RunError: if it is missing, damaged or no such file.
    """
    return _read(path, values=False)[0]


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the notes and the tensors of a safetensors file.

    Raises:
        RunError: if it is missing, damaged or no such file.
    """
    return _read(path, values=True)


def _read(path: Path, *, values: bool) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):  # opening a pipe would wait for ever
            raise RunError(f"{path}: is {kind_of(mode)}, not a file")
        with path.open("rb") as start:
            (length,) = struct.unpack("<Q", start.read(8).ljust(8, b"\xff"))
        if length > MAX_HEADER:
            raise RunError(
                f"{path}: is no safetensors file, or damaged: its header would have {length} "
                f"bytes, at most {MAX_HEADER} are read"
            )
        with safe_open(path, "pt") as file:
            tensors = {n: file.get_tensor(n) for n in file.keys()} if values else {}  # noqa: SIM118
            return file.metadata() or {}, tensors
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from None
    # Types that torch does not have end in errors of other kinds.
    except (SafetensorError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(f"{path}: is no safetensors file, or damaged ({error})") from None
