"""Other hardships than a kill: a full disk, a read-only folder, a clock set back, two at once."""

import ctypes
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import nefl
from benchmarks.campaign.children import (
    REFUSED,
    Child,
    check_finished,
    fork,
    go_on,
    settings,
    undisturbed,
)
from nefl.artifacts import runfolder
from nefl.artifacts.kept import FOLDER
from nefl.errors import RunError

_CLONE_NEWNS, _MS_RDONLY, _MS_REMOUNT, _MS_REC, _MS_PRIVATE = 0x20000, 1, 32, 16384, 1 << 18
_NOBODY = 65534


def full_disk(draw: random.Random, times: int = 10) -> dict[str, Any]:
    """A disk that fills up at a drawn point: one line says so; with room again the run goes on."""
    with _place() as place:
        child = fork(lambda: _mount(place / "disk", 4 << 20), place / "words")
        mountable = child.wait() == 0
        for number in range(times):
            work = _fill_up if mountable else _fill_up_by_limit
            room = draw.randrange(0, 700_000)  # a run takes a megabyte
            _expect_done(fork(lambda w=work, n=number, r=room: w(place, n, r), place / "words"))  # type: ignore[misc]
    how = "a small tmpfs" if mountable else "a limit on file sizes: no file system may be mounted"
    return {"times": times, "outcome": f"refused in a line, then resumed to the same ({how})"}


def _fill_up(place: Path, number: int, room: int) -> None:
    disk = place / "disk"
    _mount(disk, 4 << 20)  # seen by this process alone, and gone with it
    run, filler = disk / f"run-{number}", disk / "filler"
    free = os.statvfs(disk)
    filler.write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - room)))
    _expect_refusal(lambda: go_on(run, "serial"), "No space left|cannot be")
    filler.unlink()
    go_on(run, "serial")
    check_finished(run, "serial")


def _fill_up_by_limit(place: Path, number: int, room: int) -> None:
    run = place / f"run-{number}"
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room // 4, limits[1]))
    _expect_refusal(lambda: go_on(run, "serial"), "cannot be")
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    go_on(run, "serial")
    check_finished(run, "serial")


def read_only(_draw: random.Random, times: int = 5) -> dict[str, Any]:
    """A folder that became read-only: refused in a line, measured all the same, then resumed."""
    with _place() as place:
        child = fork(lambda: _mount(place / "disk", 16 << 20), place / "words")
        mountable = child.wait() == 0
        for number in range(times):
            work = _make_read_only if mountable else _take_permissions
            _expect_done(fork(lambda w=work, n=number: w(place, n), place / "words"))  # type: ignore[misc]
    how = "a tmpfs" if mountable else "permissions: no file system may be mounted"
    return {"times": times, "outcome": f"refused in a line, then resumed to the same ({how})"}


def _make_read_only(place: Path, number: int) -> None:
    disk = place / "disk"
    _mount(disk, 16 << 20)
    run = disk / "run"
    _stop_after(run, 1 + number)
    _call("mount", b"none", str(disk).encode(), b"tmpfs", _MS_REMOUNT | _MS_RDONLY, None)
    _expect_refusal(lambda: nefl.resume(run), "Read-only file system")
    assert nefl.evaluate(run)
    _call("mount", b"none", str(disk).encode(), b"tmpfs", _MS_REMOUNT, None)
    go_on(run, "serial")
    check_finished(run, "serial")


def _take_permissions(place: Path, number: int) -> None:
    run = place / f"run-{number}"
    _stop_after(run, 1 + number)
    folders = (run, run / FOLDER)
    for path in (*folders, *run.rglob("*.*"), run / ".lock"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    child = fork(lambda: _resume_as_nobody(run), place / "words")
    assert child.wait() == REFUSED, "a folder without permissions was written to"
    for path in (*folders, *run.rglob("*.*"), run / ".lock"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    go_on(run, "serial")
    check_finished(run, "serial")


def _resume_as_nobody(run: Path) -> None:
    if os.getuid() == 0:  # permissions do not bind root
        os.setuid(_NOBODY)
    nefl.resume(run)


def clock_set_back(draw: random.Random, times: int = 10) -> dict[str, Any]:
    """A clock that goes back by years between two starts, and files from the future."""
    with _place() as place:
        for number in range(times):
            run, back = place / f"run-{number}", timedelta(days=draw.randrange(1, 20_000))
            stop = draw.randrange(1, 5)
            _expect_done(fork(lambda r=run, s=stop: _stop_after(r, s), place / "words"))  # type: ignore[misc]
            ahead = time.time() + draw.random() * 1e9
            for path in run.rglob("*.*"):
                os.utime(path, (ahead, ahead - draw.random() * 1e9))
            _expect_done(fork(lambda r=run, b=back: _resume_in_the_past(r, b), place / "words"))  # type: ignore[misc]
            check_finished(run, "serial")
    return {"times": times, "outcome": "resumed to the same"}


def _resume_in_the_past(run: Path, back: timedelta) -> None:
    now = time.time

    class Past(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Past":
            then = datetime.now(tz or UTC) - back
            return cls(*then.timetuple()[:6], tzinfo=tz)

    time.time = lambda: now() - back.total_seconds()
    vars(runfolder)["datetime"] = Past
    nefl.resume(run)


def two_at_once(draw: random.Random, times: int = 20) -> dict[str, Any]:
    """Two resumes of one run at the same moment: one has it, the other is told so."""
    refused = 0
    with _place() as place:
        for number in range(times):
            run, stop = place / f"run-{number}", draw.randrange(1, 4)
            _expect_done(fork(lambda r=run, s=stop: _stop_after(r, s), place / "words"))  # type: ignore[misc]
            gate, opener = os.pipe()

            def resume(run: Path = run, gate: int = gate, opener: int = opener) -> None:
                os.close(opener)
                os.read(gate, 1)  # both wait until the parent closes its end
                nefl.resume(run)

            both = [fork(resume, place / f"words-{number}-{k}") for k in range(2)]
            os.close(opener)
            codes = sorted(child.wait() or 0 for child in both)
            os.close(gate)
            said = "".join(child.words.read_text(encoding="utf-8") for child in both)
            assert codes in ([0, REFUSED], [0, 0]), f"ended with {codes}: {said}"
            refused += codes[1] == REFUSED
            assert codes == [0, 0] or "is in use by another process" in said, said
            check_finished(run, "serial")
    return {"times": times, "outcome": f"the same; {refused} times the other was told who has it"}


HARDSHIPS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "full disk": full_disk,
    "read-only folder": read_only,
    "clock set back": clock_set_back,
    "two resumes at once": two_at_once,
}


class _Stop(nefl.Observer):
    """An observer that stops a run after some rounds."""

    def __init__(self, rounds: int) -> None:
        self._left = rounds

    def round_done(self, *_: object) -> None:
        """Count down."""
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


def _stop_after(run: Path, rounds: int) -> None:
    try:
        nefl.train(settings("serial"), run, observers=[_Stop(rounds)])
    except KeyboardInterrupt:
        return
    raise AssertionError("the run was not stopped")


def _expect_done(child: Child) -> None:
    code = child.wait()
    assert code == 0, f"ended with {code}: {child.words.read_text(encoding='utf-8')[-3000:]}"


def _expect_refusal(work: Callable[[], object], words: str) -> None:
    try:
        work()
    except RunError as error:
        text = str(error)
        assert any(word in text for word in words.split("|")), text
        return
    raise AssertionError("it was not refused")


@contextmanager
def _place() -> Iterator[Path]:
    undisturbed("serial")
    place = Path(mkdtemp(prefix="nefl-hardships-"))
    place.chmod(0o755)  # so that another user gets as far as the run itself
    (place / "disk").mkdir()
    yield place
    shutil.rmtree(place)  # left for a look where a promise was broken


def _mount(where: Path, size: int) -> None:
    """Mount a small file system that only this process and its children see.

    Raises:
        OSError: if this process may not.
    """
    _call("unshare", _CLONE_NEWNS)
    _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    _call("mount", b"none", str(where).encode(), b"tmpfs", 0, f"size={size}".encode())


def _call(name: str, *given: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*given):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
