"""Writing a table, figure or page to the file that the user named."""

from pathlib import Path

from nefl.errors import RunError


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file, over what was there.

    Raises:
        RunError: if it cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        path.write_bytes(data)
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error.strerror}); name another file with -o"
        ) from None
