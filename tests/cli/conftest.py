"""The command line as a shell would start it, and without the process that a shell would make."""

import io
import logging
import subprocess
import sys
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from nefl.cli import main

Done = subprocess.CompletedProcess[str]


def run(*arguments: str, cwd: Path | None = None) -> Done:
    """Run a command in a process of its own, for what only a process shows."""
    return subprocess.run(
        [sys.executable, "-m", "nefl", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=cwd,
    )


def call(*arguments: str, cwd: Path | None = None) -> Done:
    """Run a command here: a new process takes two seconds only to load torch."""
    out, errors, code = io.StringIO(), io.StringIO(), 0
    log = logging.getLogger("nefl")
    with (
        redirect_stdout(out),
        redirect_stderr(errors),
        chdir(cwd) if cwd else nullcontext(),
        mock.patch.object(sys, "argv", ["nefl", *arguments]),
        mock.patch.object(log, "handlers", []),
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess(
        ["nefl", *arguments], code, out.getvalue(), errors.getvalue()
    )
