"""The surroundings of Flower's programs: a folder of their own, and nothing that phones home."""

import os
import socket
import sys
from pathlib import Path

HOST = "127.0.0.1"

PLACE = "NEFL_TRAINER"
"""The environment variable that says where the socket of a node's trainer is."""

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""No telemetry, no look for updates, no packages fetched while a run is under way."""

SIMULATION = {"RAY_worker_niceness": "0"}
"""Ray gives its workers the least priority there is, but here they do the work."""


def quiet_environment(home: Path | None = None) -> dict[str, str]:
    """Return the environment for Flower's programs.

    Args:
        home: the folder where Flower keeps its connections and unpacked apps; the one that the
            environment names, or Flower's own, if left out.
    """
    programs = str(Path(sys.executable).parent)  # Flower starts its own programs by their names
    path = os.pathsep.join([programs, os.environ.get("PATH", "")])
    found = {**os.environ, **QUIET, **SIMULATION, "PATH": path}
    return found if home is None else {**found, "FLWR_HOME": str(home.absolute())}


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
