"""The folder of a run: config, partition, log, checkpoints, summary; one process at a time."""

import fcntl
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from nefl.artifacts import kept
from nefl.artifacts.identity import (
    EXTENDED,
    IDENTITY,
    Identity,
    read_identity,
    settle,
    write_identity,
)
from nefl.artifacts.notes import (
    CONFIG,
    FACTS,
    LOCK,
    METRICS,
    PARTITION,
    SUMMARY,
    stored_config,
    to_json,
    write_json,
)
from nefl.config import RunConfig
from nefl.errors import RunError
from nefl.files import open_without_links, part_of, refuse_link, remove_part
from nefl.nesting.spec import Family
from nefl.state import ServerState

OWN = (
    CONFIG,
    IDENTITY,
    PARTITION,
    METRICS,
    SUMMARY,
    FACTS,
    LOCK,
    kept.FOLDER,
    kept.MEMORY,
    "tensorboard",
)


class RunFolder:
    """A run's folder, held by this process until closed.

    Args:
        path: the folder.

    Raises:
        RunError: if it is no run's folder, another process holds it, or a link in it leads
            elsewhere.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        stored_config(path)
        self._lock: IO[str] | None = _lock(path)
        self._log: IO[str] | None = None
        try:
            for name in OWN:
                refuse_link(path / name)
            (path / kept.FOLDER).mkdir(exist_ok=True)
            kept.checkpoints(path)  # for links among them
            _remove_leftovers(path)
        except OSError as error:
            self.close()
            raise RunError(f"{path}: cannot be written ({error.strerror})") from None
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> "RunFolder":
        """Start a new run's folder.

        Raises:
            RunError: if something is there already or it cannot be made.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{path}: cannot be made ({error.strerror})") from None
        with _lock(path) as lock:
            # A start that was killed may have left its lock and a part of its first file.
            taken = [p for p in path.iterdir() if p.name != LOCK and part_of(p) != CONFIG]
            if taken:
                hint = "resume it" if (path / CONFIG).exists() else "it is not empty"
                raise RunError(f"{path}: exists; {hint}, or give another folder")
            write_json(path / CONFIG, config.to_dict())
            # Not by closing alone: a program that another thread is just starting has the file too.
            fcntl.flock(lock, fcntl.LOCK_UN)
        return cls(path)

    @property
    def config(self) -> RunConfig:
        """The configuration of the run."""
        return stored_config(self.path)

    @property
    def partition(self) -> Path:
        """The file with the partition."""
        return self.path / PARTITION

    def log(self, event: str, **content: object) -> None:
        """Append a line to the log, with the time in UTC.

        Raises:
            RunError: if the disk does not take it.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            if self._log is None:
                self._log = _open_log(self.path / METRICS)
            self._log.write(to_json({"event": event, "time": now, **content}) + "\n")
            self._log.flush()
        except OSError as error:
            raise RunError(
                f"{self.path / METRICS}: cannot be written ({error.strerror}); free some space, "
                "then resume the run"
            ) from error

    def save_checkpoint(self, state: ServerState, keep: int) -> Path:
        """Write a checkpoint and drop the oldest beyond those to keep."""
        return kept.keep_state(self.path, state, keep)

    def save_best(self, state: ServerState, average: float) -> None:
        """Keep a state as the best so far."""
        kept.keep_best(self.path, state, average)

    def load_newest(self, family: Family) -> tuple[ServerState | None, list[str]]:
        """Return the newest checkpoint that is whole, and what is wrong with newer ones.

        Raises:
            RunError: if there are checkpoints but none is whole.
        """
        return kept.newest_whole(self.path, family)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write what came out."""
        write_json(self.path / SUMMARY, summary)

    def drop_summary(self) -> None:
        """Take away what came out of a run that now goes on."""
        (self.path / SUMMARY).unlink(missing_ok=True)

    def extend(self, config: RunConfig, settings: str) -> None:
        """Store settings with another number of rounds.

        The checksum comes first and the old one stays beside it, so that a kill in between leaves
        a run that can be resumed, with its old rounds or its new.

        Args:
            config: the run with its new rounds.
            settings: the checksum of its settings.
        """
        known = read_identity(self.path)
        if known is not None:
            write_identity(self.path, {**known, EXTENDED: settings})
        write_json(self.path / CONFIG, config.to_dict())
        self.log("extended", rounds=config.rounds)

    def close(self) -> None:
        """Let another process have the folder."""
        log, lock = self._log, self._lock
        self._log = self._lock = None
        if log is not None:
            with suppress(OSError):  # a full disk has been reported when the line was written
                log.close()
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_UN)
            lock.close()

    def check_identity(self, identity: Identity, *, allow_code: bool = False) -> None:
        """Note what the run rests on when it starts; refuse to go on with anything else.

        Args:
            identity: what it would rest on now.
            allow_code: whether to go on although the user's own code changed; the log says so.

        Raises:
            RunError: naming what has changed since the run was started.
        """
        if changed := settle(self.path, identity, allow_code=allow_code):
            self.log("changed_code", modules=changed)


def _remove_leftovers(path: Path) -> None:
    """Delete what a kill left half-written; nobody else writes here now. Other files stay."""
    for left in path.iterdir():
        if part_of(left) in OWN:
            remove_part(left)
    for left in (path / kept.FOLDER).iterdir():
        if kept.is_checkpoint(part_of(left) or ""):
            remove_part(left)


def _open_log(path: Path) -> IO[str]:
    cut_off = path.exists() and path.stat().st_size > 0 and not _ends_with_newline(path)
    file = open(path, "a", encoding="utf-8", opener=open_without_links)  # noqa: SIM115
    if cut_off:
        file.write("\n")
    return file


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _lock(path: Path) -> IO[str]:
    refuse_link(path / LOCK)
    try:
        # Not `a+` of pathlib: it would follow a link that came there just now.
        file = open(path / LOCK, "a+", encoding="utf-8", opener=open_without_links)  # noqa: SIM115
    except OSError as error:
        raise RunError(f"{path / LOCK}: cannot be opened ({error.strerror})") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise RunError(
            f"{path}: is in use by another process (number {holder}); wait for it or stop it"
        ) from None
    with suppress(OSError):  # whose it is, for people; a full disk is no reason not to hold it
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), str(os.getpid()).encode())
    return file
