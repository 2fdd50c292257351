"""The checkpoints that a run keeps: which there are, which can be used, which may go."""

import logging
import re
from collections.abc import Iterable
from pathlib import Path

from nefl.artifacts.checkpoint import load_state, save_state
from nefl.errors import RunError
from nefl.files import refuse_link
from nefl.nesting.spec import Family
from nefl.state import ServerState

FOLDER, BEST = "checkpoints", "best.safetensors"
MEMORY = "memory"
"""The folder of what clients keep between rounds, where their method has them keep something."""

_ROUND = re.compile(r"round-(\d+)\.safetensors")
_log = logging.getLogger(__name__)


def is_checkpoint(name: str) -> bool:
    """Whether a file of this name in the folder of checkpoints is one of ours."""
    return name == BEST or _ROUND.fullmatch(name) is not None


def round_of(path: Path) -> int:
    """Return the round that a checkpoint's name tells, -1 if it is no round's."""
    found = _ROUND.fullmatch(path.name)
    return int(found[1]) if found else -1


def checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints of a run's rounds, newest first.

    Raises:
        RunError: if they, or their folder, are links to elsewhere.
    """
    folder = run / FOLDER
    refuse_link(folder)
    found = [path for path in folder.iterdir() if round_of(path) >= 0] if folder.is_dir() else []
    for path in found:
        refuse_link(path)
    return sorted(found, key=round_of, reverse=True)


def oldest_round(run: Path) -> int:
    """Return the round of the oldest checkpoint that a run may go back to; 0 if there is none."""
    return min(map(round_of, checkpoints(run)), default=0)


def needed_rounds(rounds: Iterable[int], oldest: int) -> list[int]:
    """Return the rounds whose memory of a client a run may need yet, in order.

    Args:
        rounds: those in which the client's update counted.
        oldest: the round of the oldest checkpoint: what counted last before it is needed, and all
            that came later.
    """
    inorder = sorted(rounds)
    return inorder[max(sum(number <= oldest for number in inorder) - 1, 0) :]


def keep_state(run: Path, state: ServerState, keep: int) -> Path:
    """Write a checkpoint, and drop the oldest beyond those to keep.

    Newer ones go too: a run that is only here now went back over them because they are damaged.
    They must not count among those to keep, lest the one just written be dropped for them.
    """
    path = run / FOLDER / f"round-{state.round_number:07d}.safetensors"
    save_state(path, state)
    older = [other for other in checkpoints(run) if round_of(other) < state.round_number]
    for other in checkpoints(run):
        if other != path and other not in older[: keep - 1]:
            other.unlink(missing_ok=True)
    return path


def keep_best(run: Path, state: ServerState, average: float) -> None:
    """Keep a state as the best so far."""
    save_state(run / FOLDER / BEST, state, average=repr(average))


def newest_whole(run: Path, family: Family) -> tuple[ServerState | None, list[str]]:
    """Return the newest checkpoint that is whole, and what is wrong with newer ones.

    Raises:
        RunError: if there are checkpoints but none is whole.
    """
    problems: list[str] = []
    for path in checkpoints(run):
        try:
            return load_state(path, family), problems
        except RunError as error:
            problems.append(str(error))
    if problems:
        raise RunError(f"no checkpoint can be used: {problems[0]}")
    return None, []


def read_kept(run: Path, family: Family, *, best: bool = False) -> ServerState:
    """Return a run's newest state, or its best, to be used and not to be gone on with.

    Where the newest is damaged an older one is taken, and a warning in the log says so.

    Raises:
        RunError: if there is none yet, or none is whole.
    """
    if best:
        path = run / FOLDER / BEST
        refuse_link(path.parent)
        refuse_link(path)
        if not path.exists():
            raise RunError(f"{run}: has no best checkpoint yet; it comes with an evaluation")
        return load_state(path, family)
    state, problems = newest_whole(run, family)
    if state is None:
        raise RunError(f"{run}: has no checkpoint yet")
    for problem in problems:
        _log.warning("%s; taking round %d instead", problem, state.round_number)
    return state
