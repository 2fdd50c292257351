"""Nodes of `nefl flower node` for real: one is killed, or not let in, and trains in the end."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nefl
from nefl.artifacts.notes import read_log
from nefl.config import ClientsConfig, RunConfig
from nefl.config.reading import config_from
from nefl.engines.flower.programs.app_files import write_app
from nefl.engines.flower.programs.loopback import Loopback
from nefl.engines.flower.server.run_settings import read_run_settings
from nefl.engines.processes import descendants

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]

NODES, VICTIM = 3, 2
SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "clients.count": NODES,
    "clients.per_round": NODES,
    "clients.capability": "fixed",
    "local.epochs": 1,
    # Every client must count, so a round that lost one is repeated once the node is back.
    "server.quorum": 1.0,
    "engine.flower.deadline": 900.0,
    "engine.flower.patience": 900.0,
    "settings": "server.evaluate_every=3 server.checkpoint_every=1",
}


def wait_for(happened: Callable[[], bool], loopback: Loopback) -> None:
    while not happened():
        assert loopback.alive("superlink")
        time.sleep(0.2)


def events(out: Path, name: str) -> list[dict[str, Any]]:
    found = read_log(out) if (out / "metrics.jsonl").exists() else ()
    return [event for event in found if event["event"] == name]


def test_a_killed_node_is_back_and_trains(tmp_path: Path) -> None:
    out = tmp_path / "run"
    write_app(
        tmp_path / "nested",
        "digits",
        RunConfig(clients=ClientsConfig(count=NODES, per_round=NODES)),
    )
    with Loopback(tmp_path / "flower") as loopback:
        loopback.start_server()
        for number in range(NODES):
            node = {"partition-id": number, "num-partitions": NODES}
            loopback.start_node(f"node{number}", node)
        loopback.run(tmp_path / "nested", {**SETTINGS, "out": str(out)})
        wait_for(lambda: bool(events(out, "round")), loopback)
        keeper = loopback.pids()[f"node{VICTIM}"]
        killed = descendants(keeper)
        assert len(killed) >= 3, "trainer, SuperNode, and what starts its clients"
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        loopback.wait(limit=1500)
        assert loopback.alive(f"node{VICTIM}")
        assert not set(killed) & set(descendants(keeper))
    joined = [event["client"] for event in events(out, "joined")]
    assert sorted(joined) == [0, 1, VICTIM, VICTIM]
    assert [event["round"] for event in events(out, "round")] == [1, 2, 3]
    summary = json.loads((out / "summary.json").read_text())
    values = read_run_settings({"recipe": "digits", **SETTINGS}).config.to_dict()
    local = nefl.train(config_from(values | {"engine": {"name": "serial"}}), tmp_path / "local")
    assert summary["state_sha256"] == local.summary["state_sha256"]
    logs = [loopback.log(f"node{n}").read_text(errors="replace") for n in range(NODES)]
    assert "the trainer ended (exit code -9)" in logs[VICTIM]
    assert "the SuperNode ended (exit code -9)" in logs[VICTIM]
    assert logs[VICTIM].count("trainer: ready") == 2
    for number in set(range(NODES)) - {VICTIM}:
        assert "training in this process" not in logs[number], "its trainer answered every message"
        assert logs[number].count("trainer: answered a message") >= 4
        assert "Start `flwr-clientapp` process" not in logs[number], "clients were forked"


def test_a_node_that_is_not_let_in_gets_in_by_itself(tmp_path: Path) -> None:
    """Flower ends a SuperNode with 305 whose key is not registered, or that it believes online."""
    out = tmp_path / "run"
    changes = {"rounds": 2, "clients.count": 1, "clients.per_round": 1}
    settings: dict[str, Any] = {**SETTINGS, **changes, "out": str(out)}
    write_app(tmp_path / "nested", "digits", RunConfig(clients=ClientsConfig(count=1, per_round=1)))
    with Loopback(tmp_path / "flower", secure=True) as loopback:
        loopback.start_server()
        loopback.start_node("node0", {"partition-id": 0, "num-partitions": 1})

        def refusals() -> int:
            return loopback.log("node0").read_text(errors="replace").count("Exit Code: 305")

        wait_for(lambda: refusals() > 0, loopback)
        loopback.register("node0")
        loopback.run(tmp_path / "nested", settings)
        wait_for(lambda: bool(events(out, "round")), loopback)
        before = refusals()
        for pid in descendants(loopback.pids()["node0"]):
            os.kill(pid, signal.SIGKILL)
        loopback.wait(limit=1500)
        assert refusals() > before, "the SuperLink believed it online for a while"
        assert loopback.alive("node0")
    assert [event["round"] for event in events(out, "round")] == [1, 2]
    assert "the SuperNode ended (exit code 1); starting it again" in loopback.log(
        "node0"
    ).read_text(errors="replace")
