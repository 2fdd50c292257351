"""Writing files so that a kill or a full disk leaves either the old or the new one whole."""

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from nefl.errors import RunError

MAX_SMALL = 32 * 2**20
"""Bytes of settings or notes of a run; label counts of a large federation need two million."""

_PART = re.compile(r"\.(?P<name>.+)\.\w+\.part")


def write_atomically(
    path: Path, write: Callable[[Path], object], *, follow_links: bool = True
) -> None:
    """Let `write` fill a file of the path's name in a folder beside it, make it durable, then put
    it in place.

    What a kill leaves is that folder, whose name ends in `.part`. Nobody can have put a link
    there before: the folder is new, and ours alone.

    Args:
        path: the file. A link to a file stays, and the file that it points to is replaced.
        write: fills the file it is given; it may write it several times, and read it.
        follow_links: whether a link is taken for what it points to, or refused.

    Raises:
        RunError: if it cannot be written, or something is there that is no regular file; what was
            there before is still there.
    """
    check_target(path, follow_links=follow_links)
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    with _in_place(path, target) as filled:
        write(filled)
        _make_durable(filled)


@contextmanager
def _in_place(path: Path, target: Path) -> Iterator[Path]:
    """Give a place beside a target to fill; what is there afterwards takes the target's place.

    Raises:
        RunError: naming the path as it was given, if it cannot be written.
    """
    beside: Path | None = None
    try:
        beside = Path(tempfile.mkdtemp(".part", f".{target.name}.", target.parent))
        filled = beside / target.name
        yield filled
        filled.replace(target)
        sync_folder(target.parent)
    except (OSError, SafetensorError) as error:  # the latter wraps what the system said
        raise RunError(
            f"{path}: cannot be written ({_reason(error)}); free some space or check "
            "the folder's permissions, then try again"
        ) from error
    finally:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)


def _make_durable(file: Path) -> None:
    file.chmod(0o666 & ~_umask())  # safetensors would keep others of a group from reading
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def write_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder beside a path, then put it there, whole.

    Args:
        path: the folder; nothing may be there yet, or an empty one.
        write: fills the folder it is given, which exists; it may write it several times.

    Raises:
        RunError: if something is there, or it cannot be written.
    """
    check_folder_target(path)
    with _in_place(path, path) as filled:
        filled.mkdir()
        write(filled)
        for file in filled.iterdir():
            _make_durable(file)


def check_folder_target(path: Path) -> None:
    """Raise if a path cannot become a new folder.

    Raises:
        RunError: naming what is there.
    """
    try:
        empty = path.is_dir() and not path.is_symlink() and not any(path.iterdir())
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({_reason(error)})") from None
    if (path.exists() or path.is_symlink()) and not empty:
        raise RunError(f"{path}: is there already; name a folder that is not, or delete it first")


def check_target(path: Path, *, follow_links: bool = True) -> None:
    """Raise if a path cannot be replaced by a file: a device, a pipe, a folder.

    Raises:
        RunError: naming what is there. A file of ours is written aside and renamed, and often read
            again, so it cannot be written through to a device or a pipe.
    """
    try:
        mode = path.stat(follow_symlinks=follow_links).st_mode
    except OSError:
        return  # nothing there, or nothing that can be told: writing will tell
    if not stat.S_ISREG(mode):
        raise RunError(f"{path}: is {kind_of(mode)}, not a file; name a file to write to")


def refuse_link(path: Path) -> None:
    """Raise if a path is a symbolic link: what is written or deleted there lies elsewhere.

    Raises:
        RunError: naming the link and where it points.
    """
    if path.is_symlink():
        raise RunError(
            f"{path}: is a symbolic link (to {path.readlink()}), which nefl does not follow in a "
            "run's folder; put what it points to in its place, or delete it"
        )


def open_without_links(path: str, flags: int) -> int:
    """Open as `open` asks an opener to, but no link and nothing that one would wait at.

    Raises:
        OSError: if it is a link, or no regular file.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:  # the system speaks of too many levels
            error.strerror = "is a symbolic link, not a file"
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"is {kind_of(mode)}, not a file", path)
    return descriptor


def read_small(path: Path) -> str:
    """Return a text of a run's folder, which may be a stranger's: no link, no pipe, not endless.

    Raises:
        OSError: if it is no regular file, or has more than `MAX_SMALL` bytes.
        ValueError: if it is not UTF-8.
    """
    with open(path, "rb", opener=open_without_links) as file:
        content = file.read(MAX_SMALL + 1)
    if len(content) > MAX_SMALL:
        raise OSError(errno.EFBIG, f"has more than {MAX_SMALL} bytes", str(path))
    return content.decode("utf-8")


def part_of(path: Path) -> str | None:
    """Return the name of the file that a left-over `.part` was to become; None if it is none."""
    found = _PART.fullmatch(path.name)
    return found["name"] if found else None


def remove_part(path: Path) -> None:
    """Delete what a kill left of a file that was being written."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:  # as versions before 0.1 left it, or a link, of which only the link goes
        path.unlink(missing_ok=True)


def kind_of(mode: int) -> str:
    """Return what a path is that is no regular file, in words."""
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


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
