"""A node runs the server's code, or refuses by name."""

from pathlib import Path
from typing import Any, cast

import pytest

import nefl
from nefl.config.reading import config_from, with_settings
from nefl.engines.flower.server.mailbox import Grid
from nefl.engines.flower.source import check_source, node_source
from nefl.errors import RunError
from nefl.flower import connect_to, site_client
from nefl.rounds import Observer

from .conftest import LocalGrid, population

METHOD = """
import nefl
import node_part

mine = nefl.METHODS["nefl-wd"]
"""


@pytest.fixture
def method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "node_method.py").write_text(METHOD)
    (tmp_path / "node_part.py").write_text("STRENGTH = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "node_part.py"


class Edits(Observer):
    """Changes a file after the first round, as if a node had another version of it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def round_done(self, *_: object) -> None:
        self._path.write_text("STRENGTH = 2\n")


def test_other_source_on_a_node_costs_its_task_by_name(
    quick: dict[str, Any], tmp_path: Path, method: Path
) -> None:
    settings = with_settings(
        quick,
        {
            "rounds": 2,
            "model.method": "node_method:mine",
            "model.ratios": [0.5, 1.0],
            "data.train": 40,
            "clients": {"count": 2, "per_round": 2},
            "server.attempts": 1,
            "engine.flower": {"poll": 0.01},
        },
    )
    grid = LocalGrid(site_client(), population(2))
    with pytest.raises(
        RunError,
        match="round 2 failed .*node_method:mine: the source of node_part here is not",
    ):
        nefl.train(
            settings,
            tmp_path / "run",
            observers=[Edits(method)],
            connect=connect_to(cast("Grid", grid)),
        )


def test_what_a_node_runs_is_compared_and_nothing_else(method: Path) -> None:
    config = config_from(
        {
            "model": {"method": "node_method:mine"},
            "data": {"name": "not_here:data"},
            "server": {"average": "on_the_server:average"},
            "metrics": ["on_the_server:metric"],
        }
    )
    server = node_source(config)
    assert {name: set(found) for name, found in server.items()} == {
        "node_method:mine": {"node_method", "node_part"},
        "not_here:data": set(),
    }
    with pytest.raises(RunError, match="not_here:data: its module not_here is not on the server"):
        check_source(config, server, own_data=False)
    check_source(config, server, own_data=True)
    installed_there = {"node_method:mine": dict(server["node_method:mine"])}
    del installed_there["node_method:mine"]["node_part"]
    check_source(config, installed_there, own_data=True)
    method.with_name("node_method.py").unlink()
    with pytest.raises(RunError, match="its module node_method is not here; give this node"):
        check_source(config, server, own_data=True)
