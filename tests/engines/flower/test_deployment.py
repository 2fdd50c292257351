"""Flower's programs for real: parity of simulation and deployment, and a run through every fault.

These take minutes: `make test-deploy` runs them, and `.ci/run` does after the other tests.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import nefl
from nefl.artifacts.checkpoint import state_sha256
from nefl.artifacts.notes import read_log
from nefl.config import RunConfig
from nefl.config.reading import config_from
from nefl.engines.flower.server.run_settings import read_run_settings
from nefl.engines.serial import SerialEngine
from nefl.running.assembly import assemble
from nefl.server.aggregate import Aggregate
from nefl.state import ClientUpdate, TrainTask

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]

EXAMPLES = Path(__file__).parents[3] / "examples"
LIMIT = 1500.0


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("loopback", EXAMPLES / "flower_loopback.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_script(folder: Path, *flags: str) -> tuple[str, dict[str, Any]]:
    command = [sys.executable, str(EXAMPLES / "flower_loopback.py"), "--folder", str(folder)]
    done = subprocess.run(
        [*command, "--limit", str(LIMIT), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT + 60,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout, json.loads((folder / "run" / "summary.json").read_text())


def local_config(settings: dict[str, Any], engine: str) -> RunConfig:
    values = read_run_settings(settings).config.to_dict()
    values["engine"] = {"name": engine, "device": "cpu"}
    return config_from(values)


def test_the_same_bits_on_every_engine(tmp_path: Path) -> None:
    """Serial, workers, a deployment with TLS and keys, and Flower's simulation."""
    _, summary = run_script(tmp_path / "calm", "--calm", "--rounds", "2")
    settings = script().settings(2, calm=True)
    found = {"deployment": summary["state_sha256"]}
    for engine in ("serial", "workers"):
        result = nefl.train(local_config(settings, engine), tmp_path / engine)
        found[engine] = result.summary["state_sha256"]
    found["simulation"] = simulate(tmp_path, settings)
    assert len(set(found.values())) == 1, found


def simulate(folder: Path, settings: dict[str, Any]) -> str:
    app, out = folder / "nested", folder / "simulated"
    nefl_command("flower", "init", str(app))
    flags = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
    nefl_command("flower", "simulate", str(app), f"--set=out={out}", *flags)
    return str(json.loads((out / "summary.json").read_text())["state_sha256"])


def nefl_command(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nefl", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(os.environ),
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_run_through_every_fault(tmp_path: Path) -> None:
    """Each fault costs an update at most, is logged with its client, and the run ends."""
    example = script()
    output, summary = run_script(tmp_path)
    events = list(read_log(tmp_path / "run"))
    # The last of a number: a round that was done may be done again after the kill.
    by_number = {event["round"]: event for event in events if event["event"] == "round"}
    assert sorted(by_number) == [1, 2, 3, 4]
    rounds = [by_number[number] for number in sorted(by_number)]
    first, second, *_ = rounds
    # Two are not listed, so that fewer can count than are wanted: the round hears everybody.
    assert counted(first) == {0, 1, 2}
    reasons = {each["client"]: each["reason"] for each in first["failures"]}
    assert "lacks fc.weight and has unexpected 'fc.height'" in reasons[5]
    assert "out of memory, say" in reasons[6]
    for name in ("refused", "readmitted"):
        assert {e["name"] for e in events if e["event"] == name} == {"node3", "node4"}
    # One hangs and one died, and neither is waited for.
    assert counted(second) == {1, 2, 3, 4}
    lost = {each["client"]: each["reason"] for each in second["discarded"] + second["failures"]}
    for client in (example.HANGS, 6):  # the second, if Flower noticed before the others were done
        assert "before its reply came" in lost[client] or "error" in lost[client]
    for event in rounds:
        assert counted(event) <= set(range(example.HONEST))
    assert any(event["event"] == "resume" for event in events)
    names = {e["client"]: e["name"] for e in events if e["event"] == "joined"}
    assert names == {number: f"node{number}" for number in range(7)}
    log = (tmp_path / "flower" / "intruder.log").read_text(errors="replace")
    assert "SuperNode ID" not in log  # it never got in
    assert "Failed to activate SuperNode" in log
    assert "the intruder: " in output
    assert summary["accuracy"]
    assert replay(rounds) == summary["state_sha256"]


def counted(event: dict[str, Any]) -> set[int]:
    """Return the clients whose updates count in a round."""
    return {client for some in event["clients"].values() for client in some}


def replay(rounds: list[dict[str, Any]]) -> str:
    """Add on this machine what counted in each round, in that order; return its checksum."""
    torch.set_num_threads(1)
    setting = assemble(local_config(script().settings(4, calm=False), "serial"))
    engine = SerialEngine(setting.site(), setting.family)
    state = setting.family.initial_state(setting.config.seed)
    for event in rounds:
        submodels = {c: int(k) for k, some in event["clients"].items() for c in some}
        order = event["order"] or sorted(submodels, key=lambda c: (-submodels[c], c))
        assert set(order) == set(submodels)
        tasks = [TrainTask(event["round"], client, submodels[client]) for client in order]
        total = Aggregate(state, setting.family)
        for result in engine.train(state, tasks):
            assert isinstance(result, ClientUpdate)
            total.add(result)
        state = total.finish()
    return state_sha256(state)


def test_the_example_app_of_a_flower_user(tmp_path: Path) -> None:
    """Three files with the strategy, over simulated nodes."""
    flags = ["--home", str(tmp_path / "home"), "--nodes", "5", "--set", "num-server-rounds=2"]
    nefl_command("flower", "simulate", str(EXAMPLES / "flower_app"), *flags)
    log = (tmp_path / "home" / "run.log").read_text(errors="replace")
    assert "state_sha256" in log
