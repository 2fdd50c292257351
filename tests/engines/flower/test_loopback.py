"""Flower's programs on one machine, without starting any of them."""

import sys
from pathlib import Path

import pytest

from nefl import RunError
from nefl.engines.flower.programs.loopback import Loopback


def loopback(folder: Path, server: str) -> Loopback:
    """A federation whose server and run are programs of a line each; the run ends at once."""
    made = Loopback(folder)
    made.start("superlink", [sys.executable, "-c", server])
    made.start("run", [sys.executable, "-c", "pass"]).wait()
    return made


def test_a_run_that_did_not_complete_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`flwr run` itself ends with 0 when the server's part of an app was killed."""
    word = ("finished:failed", "No heartbeat received from the task")
    monkeypatch.setattr(Loopback, "status", lambda _: word)
    with loopback(tmp_path, "import time; time.sleep(60)") as made:
        with pytest.raises(RunError, match="finished:failed: No heartbeat"):
            made.wait("run", 30)
        word = ("finished:completed", "")
        made.wait("run", 30)


def test_a_server_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    with loopback(tmp_path, "pass") as made:
        made._processes["superlink"].wait()
        with pytest.raises(RunError, match="the SuperLink ended before the run"):
            made.wait("run", 5)
