"""Nodes that train in ExecuTorch beside nodes with torch."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

import nefl
from nefl.artifacts.notes import read_log
from nefl.config.reading import with_settings
from nefl.engines.flower.server.mailbox import Grid
from nefl.flower import connect_to, site_client
from tests.ondevice.conftest import SETTINGS, _tiny, on_device, programs

from .conftest import LocalGrid, population

__all__ = ["_tiny", "programs"]  # fixtures

CLIENTS = SETTINGS["clients"]["count"]


def train_on(nodes: dict[int, dict[str, Any]], out: Path) -> nefl.RunResult:
    settings = with_settings(SETTINGS, {"engine.flower": {"poll": 0.01}})
    grid = LocalGrid(site_client(), nodes)
    return nefl.train(settings, out, connect=connect_to(cast("Grid", grid)))


@pytest.mark.long
def test_a_fleet_of_both_has_the_bits_of_a_mixed_run_here(programs: Path, tmp_path: Path) -> None:
    mixed = on_device(SETTINGS, client_share=0.5, programs=str(programs))
    here = nefl.train(mixed, tmp_path / "here").summary
    plain = nefl.train(SETTINGS, tmp_path / "plain").summary
    nodes = population(CLIENTS)
    for node in nodes.values():
        if node["partition-id"] % 2:
            node |= {"runtime": "executorch", "programs": str(programs)}
    there = train_on(nodes, tmp_path / "there").summary
    assert there["failures"] == 0
    assert there["state_sha256"] == here["state_sha256"] != plain["state_sha256"]


@pytest.mark.long
def test_a_nodes_program_of_another_batch_size_is_refused_by_name(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(with_settings(SETTINGS, {"local.batch_size": 4})))
    nefl.export_trainable(recipe, tmp_path / "other")
    nodes = population(CLIENTS)
    for node in nodes.values():
        if node["partition-id"] == 1:
            node |= {"runtime": "executorch", "programs": str(tmp_path / "other")}
    result = train_on(nodes, tmp_path / "run")
    rounds = [event for event in read_log(tmp_path / "run") if event["event"] == "round"]
    failures = [failure for event in rounds for failure in event["failures"]]
    assert failures
    assert {failure["client"] for failure in failures} == {1}
    assert all("batch" in failure["reason"] for failure in failures)
    assert result.summary["rounds"] == SETTINGS["rounds"]
