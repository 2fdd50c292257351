"""From paths that a user names to runs: folders of runs are spread, runs of one name told apart."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from nefl.artifacts.notes import CONFIG
from nefl.errors import RunError
from nefl.report.reading.runs import Run, read_run


def read_runs(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Read run folders, and folders of run folders; return the runs, and what is none.

    Raises:
        RunError: if none of them is a run.
    """
    runs: list[Run] = []
    refused: list[str] = []
    for path in _spread(paths):
        try:
            runs.append(read_run(path))
        except RunError as error:
            refused.append(str(error))
    if not runs:
        raise RunError("; ".join(refused) or "no run was given")
    return _with_own_names(runs), refused


def _spread(paths: Iterable[Path]) -> list[Path]:
    """Replace a folder that is no run but holds some by those, and drop what is named twice."""
    found: dict[Path, Path] = {}
    for path in paths:
        inner = [] if (path / CONFIG).exists() else sorted(path.glob(f"*/{CONFIG}"))
        for each in [config.parent for config in inner] or [path]:
            found.setdefault(Path(os.path.realpath(each)), each)  # of a link to itself, itself
    return list(found.values())


def _with_own_names(runs: Sequence[Run]) -> list[Run]:
    """Tell runs of one name apart by the folders they lie in, and by numbers if need be."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [
            name if names.count(name) == 1 else str(run.path)
            for name, run in zip(names, runs, strict=True)
        ]
    return [replace(run, name=name) for name, run in zip(names, runs, strict=True)]
