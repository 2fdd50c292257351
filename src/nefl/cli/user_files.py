"""Writing a table, figure or page to the file that the user named."""

import os
from pathlib import Path

from nefl.errors import RunError
from nefl.files import write_atomically


def check_output(path: Path) -> None:
    """Raise if a file cannot be written: before what takes long, not after it.

    Raises:
        RunError: naming the file.
    """
    there = path if path.exists() else path.parent
    if path.is_dir() or not there.exists() or not os.access(there, os.W_OK):
        raise RunError(f"{path}: cannot be written; name another file, in a folder that is there")


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file in the place of what was there, or to a device or pipe.

    Raises:
        RunError: if it cannot be written; a file that was there is still there then.
    """
    if not path.parent.is_dir():
        raise RunError(
            f"{path}: cannot be written (there is no folder {path.parent}); make it, or name "
            "another file with -o"
        )
    data = content.encode() if isinstance(content, str) else content
    try:
        if path.is_file() or not path.exists():
            write_atomically(path, lambda beside: beside.write_bytes(data))
        else:
            path.write_bytes(data)
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error.strerror}); name another file with -o"
        ) from None
