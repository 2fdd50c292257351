"""The files of a small, complete Flower app that trains with nefl."""

import re
from pathlib import Path

from nefl.config import RunConfig
from nefl.errors import RunError
from nefl.files import write_atomically

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{project}"
version = "0.1.0"
description = "Nested submodels over unequal devices, with nefl on Flower"
license = {{ file = "LICENSE" }}
dependencies = ["nefl[flower]", "flwr[simulation]>=1.41,<1.42"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "me"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# Settings of the run, which `--run-config "rounds=20"` may change. Any other setting of nefl can be
# added here by its name, or given in `settings`, as in "local.momentum=0.9 server.keep=3".
[tool.flwr.app.config]
recipe = "{recipe}"
rounds = {rounds}
seed = 0
out = ""            # the run's folder on the server; empty: a numbered one in runs/
resume = false      # go on with the run in `out`
settings = ""
clients.count = {count}
clients.per_round = {per_round}
clients.capability = "tiers"
clients.over_select = 1.0        # 1.3: ask more clients than wanted, discard what comes too late
clients.pause = 0                # 1: pass over clients that fail for 1, 2, 4, … rounds
local.epochs = {epochs}
server.quorum = 0.5
server.norm_limit = 10.0         # an update that moves ten times as far as the median is refused
engine.devices = "cpu"
engine.flower.deadline = 600.0   # seconds for a round
engine.flower.patience = 120.0   # seconds to wait for nodes
engine.flower.choice = "server"  # or "client": send everything, let the client choose
engine.flower.measure = false    # let nodes time the submodels when they join
engine.flower.registry = ""      # the operator's file of nodes, a path on the server
"""

_SERVER = '''\
"""The server: one call runs the whole training, with log, checkpoints and resume."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from nefl.flower import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train what the run config describes."""
    serve(grid, context)
'''

_CLIENT = '''\
"""The client: trains the submodel it is sent, on its own examples.

The node's own data: start the node with `--node-config 'own-data="/path/to/mine.npz"'`.
Without it the node takes part `partition-id` of the run's data set.
"""

from nefl.engines.flower.node.warm_client import warm_client

app = warm_client()
'''

_NODES = """\
# What the operator knows of the nodes, by the name their key was registered with. Give the path of
# this file on the server as engine.flower.registry. What is left out, a node may say itself.

# others = "refuse"     # nodes that are not listed may not take part

# [default]
# largest = 3           # the largest submodel that a node not listed may train

# [nodes.edge-0]
# client = 0            # its number, from 0
# tier = 1              # what it usually trains
# largest = 2           # what it may train at most

# [nodes.edge-1]        # or by what the device can do
# memory = 2.0e9        # bytes for training
# macs_per_second = 1.0e10
# bandwidth = 1.0e6     # bytes a second
"""

_README = """\
# {project}

A Flower app that trains nested submodels with nefl. Try it on this machine:

    nefl flower simulate .

That is `flwr run . local --stream` with a SuperLink of its own, {count} simulated nodes, and
telemetry, update check and run-time installation switched off. The run's folder is under `runs/`.

For real machines see nefl's page on Flower. Settings are in `pyproject.toml`; `nodes.toml` is the
operator's file of nodes.
"""

_LICENSE = "Put the licence of your app here.\n"


def write_app(folder: Path, recipe: str, config: RunConfig) -> list[Path]:
    """Write an app that runs as it is, and return its files.

    Args:
        folder: where to; new or empty.
        recipe: what it trains.
        config: that recipe's settings.

    Raises:
        RunError: if the folder is not empty or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder}: exists and is not empty; give another folder")
    project = re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-") or "app"
    project = project if project[0].isalpha() else f"app-{project}"
    words = {
        "project": project,
        "package": project.replace("-", "_"),
        "recipe": recipe,
        "rounds": min(config.rounds, 5),
        "count": config.clients.count,
        "per_round": config.clients.per_round,
        "epochs": config.local.epochs,
    }
    package = folder / str(words["package"])
    texts = {
        folder / "pyproject.toml": _PYPROJECT.format(**words),
        folder / "README.md": _README.format(**words),
        folder / "LICENSE": _LICENSE,
        folder / ".gitignore": ".flwr/\nruns/\n",  # Flower packs what git would
        folder / "nodes.toml": _NODES,
        package / "__init__.py": '"""Nested submodels on Flower."""\n',
        package / "server_app.py": _SERVER,
        package / "client_app.py": _CLIENT,
    }
    try:
        package.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{package}: cannot be made ({error.strerror})") from None
    for path, text in texts.items():
        _write(path, text)
    return list(texts)


def _write(path: Path, text: str) -> None:
    def fill(beside: Path) -> None:
        beside.write_text(text, encoding="utf-8")

    write_atomically(path, fill)
