"""Flower's SuperNode, as `nefl flower node` starts it: it ends with whoever started it.

    python -m nefl.engines.flower.programs.supernode POLL OPTIONS…

POLL is how often it looks for work, in seconds, or `-` for as often as Flower does; the options are
those of `flower-supernode`.
"""

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace

from click import ClickException
from flwr.common.config import parse_config_args
from flwr.supernode.cli import flower_supernode

from nefl.engines.flower.programs.environment import PLACE
from nefl.engines.flower.programs.keeping import BAD_OPTIONS
from nefl.engines.processes import end_with_starter

LOOP = "flwr.supernode.start_client_internal"
"""Where Flower starts the program that starts clients, and then looks for work."""

PROGRAM = "flower-superexec"
FORKING = "from nefl.engines.flower.programs.superexec import main; main()"
"""That program, as Flower calls it, and the one that is started in its place.

It is no module of its own name there, or every fork would import it once more as such.
"""


def main() -> None:
    """Run the SuperNode until it ends."""
    end_with_starter(signal.SIGTERM)
    poll, options = sys.argv[1], sys.argv[2:]
    if "--node-config" in options:
        given = options[options.index("--node-config") + 1]
        try:
            parse_config_args([given])
        except (ClickException, OSError, ValueError) as error:
            sys.stderr.write(f"nefl: error: --node-config {given!r} cannot be read ({error})\n")
            sys.exit(BAD_OPTIONS)
    if poll != "-":
        look_every(float(poll))
    if os.environ.get(PLACE):
        fork_clients()
    sys.argv = ["flower-supernode", *options]
    flower_supernode()


def look_every(seconds: float) -> None:
    """Let the SuperNode look for work more often than every three seconds.

    Flower has no setting for it: the pause stands in the code of its loop, where it is cut short.
    """
    loop = importlib.import_module(LOOP)

    def pause(wanted: float) -> None:
        time.sleep(min(wanted, seconds))

    loop.__dict__["time"] = SimpleNamespace(sleep=pause)


def fork_clients() -> None:
    """Let clients be forked from a process that has imported Flower, beside a trainer."""
    loop = importlib.import_module(LOOP)

    def start(command: Sequence[str]) -> "subprocess.Popen[bytes]":
        program, *options = command
        forking = [sys.executable, "-c", FORKING]
        return subprocess.Popen([*(forking if program == PROGRAM else [program]), *options])

    loop.__dict__["subprocess"] = SimpleNamespace(Popen=start)


if __name__ == "__main__":
    main()
