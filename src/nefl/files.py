"""Writing files so that a kill or a full disk leaves either the old or the new one whole."""

import os
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from nefl.errors import RunError


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a file beside the path, make it durable, then put it in place.

    What a kill leaves beside it ends in `.part`.

    Raises:
        RunError: if it cannot be written; what was there before is still there.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(beside)
        beside.chmod(0o666 & ~_umask())  # safetensors would keep others of a group from reading
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except (OSError, SafetensorError) as error:  # the latter wraps what the system said
        beside.unlink(missing_ok=True)
        raise RunError(
            f"{path}: cannot be written ({_reason(error)}); free some space or check "
            "the folder's permissions, then resume the run"
        ) from error
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)  # there is no way to ask without setting it
    os.umask(mask)
    return mask


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def sync_folder(folder: Path) -> None:
    """Make renames within a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def default_cache() -> Path:
    """`$NEFL_CACHE`, else `$XDG_CACHE_HOME/nefl`, else `~/.cache/nefl`."""
    if chosen := os.environ.get("NEFL_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "nefl"
