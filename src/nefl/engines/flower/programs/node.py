"""A node in one command: a SuperNode and the trainer beside it, both kept running.

Nothing of torch or Flower is imported here: this process lives as long as the node does.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from nefl.engines.flower.programs.environment import HOST, PLACE, free_port, quiet_environment
from nefl.engines.flower.programs.keeping import Kept, Tell
from nefl.errors import ConfigError

TASK_POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
TASK_POLL_SECONDS = 0.25
"""How often Flower's program that starts clients looks for messages of its own SuperNode."""

TRAINER_MEMORY = 2_000_000_000
"""Bytes that a trainer may hold after a message before it is started anew."""

LONGEST_PLACE = 103
"""Bytes that the path of a socket may have on every system."""

LOOK_SECONDS = 0.2
START_SECONDS = 120.0
"""How long the SuperNode waits for the trainer; then it starts, and messages start processes."""

MANY_ENDS = 6
"""Ends in a row after which a hint is given: a killed node gets in again before."""

HINT = (
    "the SuperNode does not get in; is the address right, the SuperLink running with the same "
    "certificates, and the node's key registered (flwr supernode list)?"
)


@dataclass(frozen=True)
class NodeOptions:
    """What a node is started with; names as those of `flower-supernode`.

    Attributes:
        superlink: the SuperLink's address, `host:port`.
        insecure: without TLS.
        root_certificates: the authority of the SuperLink's certificate.
        auth_supernode_private_key: the node's key.
        node_config: keys and values of the node.
        port: where the processes on this machine reach the SuperNode; a free one if left out.
        health_server_address: where to answer questions of health.
        poll: seconds between two looks for work, at most three; as Flower does if left out.
        warm: whether there is a trainer.
        trainer_memory: bytes that the trainer may hold after a message.
        further: any other options of `flower-supernode`.
    """

    superlink: str
    insecure: bool = False
    root_certificates: Path | None = None
    auth_supernode_private_key: Path | None = None
    node_config: str = ""
    port: int | None = None
    health_server_address: str | None = None
    poll: float | None = None
    warm: bool = True
    trainer_memory: int = TRAINER_MEMORY
    further: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no SuperNode could be started with.

        Raises:
            ConfigError: naming the option.
        """
        host, _, port = self.superlink.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f"--superlink {self.superlink!r}: give it as host:port")
        if self.insecure and self.root_certificates:
            raise ConfigError("--insecure and --root-certificates: give one of them")
        if self.insecure and self.auth_supernode_private_key:
            raise ConfigError(
                "--auth-supernode-private-key needs TLS: give --root-certificates, not --insecure"
            )
        files = {
            "--root-certificates": self.root_certificates,
            "--auth-supernode-private-key": self.auth_supernode_private_key,
        }
        for name, path in files.items():
            if path is not None and not os.access(path, os.R_OK):
                raise ConfigError(f"{name} {path}: cannot be read")
        if self.poll is not None and not 0.05 <= self.poll <= 3.0:
            raise ConfigError(f"--poll {self.poll:g}: give 0.05 to 3 seconds")
        if self.trainer_memory <= 0:
            raise ConfigError(f"--trainer-memory {self.trainer_memory}: give more than 0 bytes")

    def command(self) -> list[str]:
        """Return the command line of the SuperNode, with a port that is free now."""
        poll = "-" if self.poll is None else str(self.poll)
        command = [sys.executable, "-m", "nefl.engines.flower.programs.supernode", poll]
        command += ["--superlink", self.superlink]
        command += ["--host", HOST, "--port", str(self.port or free_port())]
        if self.insecure:
            command += ["--insecure"]
        if self.root_certificates is not None:
            command += ["--root-certificates", str(self.root_certificates)]
        if self.auth_supernode_private_key is not None:
            command += ["--auth-supernode-private-key", str(self.auth_supernode_private_key)]
        if self.node_config:
            command += ["--node-config", self.node_config]
        if self.health_server_address is not None:
            command += ["--health-server-address", self.health_server_address]
        return [*command, *self.further]


def keep_node(options: NodeOptions, tell: Tell) -> None:
    """Keep a node running until this process gets a SIGINT or SIGTERM; then end all of it.

    Args:
        options: what it is started with.
        tell: gets a line for whatever happens.

    Raises:
        ConfigError: if there is no place for the trainer's socket.
        RunError: if the SuperNode does not take its options.
    """
    with tempfile.TemporaryDirectory(prefix="nefl-node-") as folder, _stopping() as stop:
        place = Path(folder) / "trainer.sock"  # the folder is this user's alone: mode 0700
        environment = {TASK_POLL: str(TASK_POLL_SECONDS), **quiet_environment()}
        environment.pop(PLACE, None)
        trainer = None
        if options.warm:
            if len(os.fsencode(place)) > LONGEST_PLACE:
                raise ConfigError(f"{place}: too long for a socket; set TMPDIR to a shorter folder")
            environment[PLACE] = str(place)
            command = [sys.executable, "-m", "nefl.engines.flower.node.trainer", str(place)]
            command += [str(options.trainer_memory)]
            trainer = Kept("trainer", lambda: command, environment, tell)
        supernode = Kept("SuperNode", options.command, environment, tell)
        try:
            if trainer is not None:
                _await(trainer, place, stop)
            while not stop:
                _look(supernode, trainer, tell)
                time.sleep(LOOK_SECONDS)
        finally:
            supernode.end()
            if trainer is not None:
                trainer.end()


def _await(trainer: Kept, place: Path, stop: list[int]) -> None:
    """Start the trainer and wait until it listens, fails or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    trainer.look()
    while not stop and trainer.alive and not place.exists() and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)


def _look(supernode: Kept, trainer: Kept | None, tell: Tell) -> None:
    if trainer is not None:
        trainer.look()
    if supernode.look() and supernode.early_ends == MANY_ENDS:
        tell(HINT)


@contextmanager
def _stopping() -> Iterator[list[int]]:
    """Note SIGINT and SIGTERM in a list instead of ending at once."""
    noted: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        noted.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
