"""The folder of a run: config, partition, log, checkpoints, summary; one process at a time."""

import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from nefl.artifacts.checkpoint import load_state, save_state
from nefl.config import RunConfig
from nefl.config_reading import config_from, read_config
from nefl.errors import ConfigError, RunError
from nefl.files import write_atomically
from nefl.nesting.spec import Family
from nefl.parsing import parse_json
from nefl.state import ServerState

CONFIG, IDENTITY, PARTITION = "config.json", "identity.json", "partition.safetensors"
METRICS, SUMMARY, LOCK = "metrics.jsonl", "summary.json", ".lock"


class RunFolder:
    """A run's folder, held by this process until closed.

    Args:
        path: the folder.

    Raises:
        RunError: if it is no run's folder, or another process holds it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        stored_config(path)
        self._lock: IO[str] | None = _lock(path)
        self._log: IO[str] | None = None
        (path / "checkpoints").mkdir(exist_ok=True)
        # Nobody else writes here now: what a kill left half-written can go.
        for left in (*path.glob(".*.part"), *(path / "checkpoints").glob(".*")):
            left.unlink(missing_ok=True)

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
            taken = [p for p in path.iterdir() if p.name != LOCK and p.suffix != ".part"]
            if taken:
                hint = "resume it" if (path / CONFIG).exists() else "it is not empty"
                raise RunError(f"{path}: exists; {hint}, or give another folder")
            write_json(path / CONFIG, config.to_dict())
            # Not by closing alone: a program that another thread is just starting has the file too.
            fcntl.flock(lock, fcntl.LOCK_UN)
        return cls(path)

    @property
    def config(self) -> RunConfig:
        """The configuration the run was started with."""
        return stored_config(self.path)

    @property
    def partition(self) -> Path:
        """The file with the partition."""
        return self.path / PARTITION

    def log(self, event: str, **content: object) -> None:
        """Append a line to the log.

        Raises:
            RunError: if the disk does not take it.
        """
        try:
            if self._log is None:
                self._log = _open_log(self.path / METRICS)
            self._log.write(to_json({"event": event, **content}) + "\n")
            self._log.flush()
        except OSError as error:
            raise RunError(
                f"{self.path / METRICS}: cannot be written ({error.strerror}); free some space, "
                "then resume the run"
            ) from error

    def save_checkpoint(self, state: ServerState, keep: int) -> Path:
        """Write a checkpoint and drop the oldest beyond those to keep."""
        path = self.path / "checkpoints" / f"round-{state.round_number:07d}.safetensors"
        save_state(path, state)
        for old in self.checkpoints()[keep:]:
            old.unlink(missing_ok=True)
        return path

    def save_best(self, state: ServerState, accuracy: float) -> None:
        """Keep a state as the best so far."""
        best = self.path / "checkpoints" / "best.safetensors"
        save_state(best, state, average_accuracy=repr(accuracy))

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints of rounds, newest first."""
        return sorted((self.path / "checkpoints").glob("round-*.safetensors"), reverse=True)

    def load_newest(self, family: Family) -> tuple[ServerState | None, list[str]]:
        """Return the newest checkpoint that is whole, and what is wrong with newer ones.

        Raises:
            RunError: if there are checkpoints but none is whole.
        """
        problems: list[str] = []
        for path in self.checkpoints():
            try:
                return load_state(path, family), problems
            except RunError as error:
                problems.append(str(error))
        if problems:
            raise RunError(f"no checkpoint can be used: {problems[0]}")
        return None, []

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write what came out."""
        write_json(self.path / SUMMARY, summary)

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

    def check_identity(self, identity: Mapping[str, str]) -> None:
        """Note what the run rests on when it starts; refuse to go on with anything else.

        Raises:
            RunError: naming what has changed since the run was started.
        """
        if (self.path / IDENTITY).exists():
            check_unchanged(self.path, identity)
        else:
            write_json(self.path / IDENTITY, identity)


def check_unchanged(run: Path, identity: Mapping[str, str]) -> None:
    """Raise if anything that a run rests on is not what it was; what it did not note may be new.

    Raises:
        RunError: naming what has changed since the run was started.
    """
    path = run / IDENTITY
    if not path.exists():
        return
    try:
        known = parse_json(path.read_text(encoding="utf-8"))
        changed = [key for key, value in identity.items() if known.get(key) != value]
    except (ValueError, AttributeError):
        raise RunError(f"{path}: is damaged; delete it to go on without its check") from None
    if changed:
        raise RunError(
            f"{run}: {' and '.join(changed)} changed since the run was started; put them back, "
            "or start another run"
        )


def to_json(content: Mapping[str, Any], indent: int | None = None) -> str:
    """Write JSON that every parser takes: numbers that are not finite become null."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON atomically."""
    text = to_json(content, indent=2) + "\n"
    write_atomically(path, lambda beside: _write_text(beside, text))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def stored_config(run: Path) -> RunConfig:
    """Return the configuration that a run was started with.

    Raises:
        RunError: if there is no run, or its configuration cannot be read.
    """
    if not (run / CONFIG).is_file():
        raise RunError(f"{run}: is no run's folder (it has no {CONFIG})")
    try:
        return config_from(read_config(run / CONFIG), str(run / CONFIG))
    except ConfigError as error:
        raise RunError(str(error)) from None


def find_checkpoint(run: Path, *, best: bool = False) -> Path:
    """Return a run's newest checkpoint, or its best.

    Raises:
        RunError: if it has none yet.
    """
    checkpoints = run / "checkpoints"
    newest = max(checkpoints.glob("round-*.safetensors"), default=None)
    chosen = checkpoints / "best.safetensors" if best else newest
    if chosen is None or not chosen.exists():
        raise RunError(f"{run}: has no such checkpoint yet")
    return chosen


def read_log(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a run's log. A line that a kill cut off is passed over."""
    path = run / METRICS
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    event = parse_json(line)
                except ValueError:
                    continue
                if isinstance(event, dict):
                    yield event


def _open_log(path: Path) -> IO[str]:
    cut_off = path.exists() and path.stat().st_size > 0 and not _ends_with_newline(path)
    file = path.open("a", encoding="utf-8")
    if cut_off:
        file.write("\n")
    return file


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _lock(path: Path) -> IO[str]:
    try:
        file = (path / LOCK).open("a+", encoding="utf-8")
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
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
