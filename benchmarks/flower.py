"""What Flower costs: bytes of each submodel, a client's start, and what a round adds.

    python benchmarks/flower.py [bytes] [start] [rounds] [digits]

`bytes` and `start` take seconds, `rounds` and `digits` minutes: they train the same recipe in this
process, in Flower's simulation and over nodes on loopback, check that the weights are the same bit
for bit, and compare the seconds of the rounds after the first. The clients have next to nothing to
compute, so what remains is the way there and back: of ResNet18 to five nodes (`rounds`), and of the
digits' small network to three. Nodes start a process for every message (cold), keep a trainer
alive (warm), do that and look for work four times a second (quick), or that with a SuperLink that
has no database (memory). Processor seconds of a round, of the nodes and of the server, say what it
costs also where other work slows everything down.
"""

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nefl
from nefl.artifacts.notes import read_log
from nefl.config import ClientsConfig, RunConfig
from nefl.config.reading import config_from
from nefl.engines.flower.messages import content_bytes, from_arrays, state_to_arrays, to_arrays
from nefl.engines.flower.programs.app_files import write_app
from nefl.engines.flower.programs.loopback import Loopback
from nefl.engines.flower.server.run_settings import read_run_settings
from nefl.engines.processes import descendants
from nefl.wire.layouts import travel_bytes

KINDS = ("simulation", "cold", "warm", "quick", "memory")
"""Flower's simulation; nodes that start a process for every message; nodes with a trainer that
stays alive; those that also look for work more often; and these with a SuperLink in memory."""

POLL = 0.25
REPEATS = 3


def measure_bytes() -> None:
    from flwr.app import RecordDict

    family = nefl.make_family("resnet18", "nefl-wd")
    state = family.initial_state(0)
    whole = content_bytes(RecordDict({"arrays": state_to_arrays(state)}))
    columns = ("submodel", "weights", "message", "of the full", "write s", "read s")
    print(" ".join(f"{column:>12}" for column in columns))
    full = 0
    rows = []
    for submodel in range(len(family), 0, -1):
        tensors = nefl.extract(state, family, submodel)
        started = time.perf_counter()
        record = to_arrays(tensors)
        written = time.perf_counter()
        back = from_arrays(record, family.layout(submodel))
        read = time.perf_counter()
        assert all(bool((back[name] == tensor).all()) for name, tensor in tensors.items())
        message = content_bytes(RecordDict({"arrays": record}))
        full = full or message
        weights = travel_bytes(family, submodel)
        rows.append((submodel, weights, message, message / full, written - started, read - written))
    for number, weights, message, share, writing, reading in reversed(rows):
        numbers = f"{number:12d} {weights:12,d} {message:12,d} {share:12.2f}"
        print(f"{numbers} {writing:12.3f} {reading:12.3f}")
    print(f"the whole state, where clients choose: {whole:,d} bytes, {whole / full:.2f} of that")


def cpu_seconds(code: str) -> float:
    """Return the processor time of a fresh interpreter, the median of some runs."""
    found = []
    for _ in range(REPEATS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(found)


def measure_start() -> None:
    parts = {
        "python": "pass",
        "flwr's client": "import flwr.supernode.runtime.run_clientapp",
        "torch": "import torch",
        "torch and nefl": "import nefl",
        "a cold client": "import flwr.supernode.runtime.run_clientapp\n"
        "import nefl.engines.flower.node.site_client",
        "a warm client": "import flwr.supernode.runtime.run_clientapp\n"
        "import nefl.engines.flower.node.warm_client",
    }
    print("processor seconds from nothing to imported")
    for name, code in parts.items():
        print(f"{name:>18} {cpu_seconds(code):6.2f}")


def resnet_settings(model: str, rounds: int) -> dict[str, Any]:
    return {
        "settings": f"model.name={model} data.name=synthetic local.batch_size=8 "
        f"server.evaluate_every={rounds} server.checkpoint_every={rounds} "
        "data.options={shape=[3,32,32],train=40,test=20}",
    }


def measure_rounds(
    what: str, nodes: int, rounds: int, kinds: Sequence[str], settings: dict[str, Any]
) -> None:
    settings = {
        "rounds": rounds,
        "clients.count": nodes,
        "clients.per_round": nodes,
        "clients.capability": "fixed",
        "local.epochs": 1,
        "engine.flower.deadline": 900.0,
        "engine.flower.patience": 900.0,
        **settings,
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        values = read_run_settings(settings).config.to_dict()
        local = nefl.train(config_from(values | {"engine": {"name": "serial"}}), folder / "serial")
        found = {"serial": later_rounds(folder / "serial")}
        spent: dict[str, tuple[float, float]] = {}
        for kind in kinds:
            out = folder / kind
            given = settings | {"out": str(out)}
            spent[kind] = run_on_flower(folder / f"flower-{kind}", given, kind, nodes)
            summary = json.loads((out / "summary.json").read_text())
            assert summary["state_sha256"] == local.summary["state_sha256"]
            found[kind] = later_rounds(out)
            print(f"{kind} is done", file=sys.stderr)
        print(f"{what}, {nodes} clients, seconds of a round (median of those after the first)")
        for name, seconds in found.items():
            added = seconds - found["serial"]
            line = f"{name:>12} {seconds:8.2f} s, {added:8.2f} s more than in one process"
            if name in spent:
                line += "; processor seconds: nodes {:.2f}, server {:.2f}".format(*spent[name])
            print(line)


def later_rounds(out: Path) -> float:
    rounds = [float(event["seconds"]) for event in read_log(out) if event["event"] == "round"]
    return statistics.median(rounds[1:])


def run_on_flower(
    folder: Path, settings: dict[str, Any], kind: str, nodes: int
) -> tuple[float, float]:
    """Run an app; return the processor seconds of a later round, of the nodes and the server."""
    app = folder / "nested"
    clients = ClientsConfig(count=nodes, per_round=nodes)
    write_app(app, "digits", RunConfig(clients=clients))
    at = folder / "flower"
    simulated, database = kind == "simulation", kind != "memory"
    with Loopback(at, simulation=simulated, database=database) as loopback:
        loopback.start_server()
        if not simulated:
            for number in range(nodes):
                node = {"partition-id": number, "num-partitions": nodes}
                poll = POLL if kind in ("quick", "memory") else None
                loopback.start_node(f"node{number}", node, warm=kind != "cold", poll=poll)
        loopback.run(app, settings, nodes=nodes)
        rounds, out = settings["rounds"], Path(settings["out"])
        spent = []
        for number in (1, rounds):
            while rounds_done(out) < number:
                if not loopback.alive("run"):
                    loopback.wait()  # raises if the run failed
                time.sleep(0.2)
            seconds = {name: tree_seconds(pid) for name, pid in loopback.pids().items()}
            server = seconds["superlink"]
            spent.append((sum(seconds.values()) - seconds["run"] - server, server))
        loopback.wait()
    of_nodes, of_server = ((b - a) / (rounds - 1) for a, b in zip(*spent, strict=True))
    return of_nodes, of_server


def tree_seconds(pid: int) -> float:
    """Return the processor seconds of a process and all that it has started."""
    ticks = 0
    for each in (pid, *descendants(pid)):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])  # its own, and of ended children
    return ticks / os.sysconf("SC_CLK_TCK")


def rounds_done(out: Path) -> int:
    if not (out / "metrics.jsonl").exists():
        return 0
    return sum(event["event"] == "round" for event in read_log(out))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=["bytes", "start", "rounds", "digits"])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    given = parser.parse_args()
    if "bytes" in given.parts:
        measure_bytes()
    if "start" in given.parts:
        measure_start()
    if "rounds" in given.parts:
        settings = resnet_settings(given.model, given.rounds)
        measure_rounds(given.model, 5, given.rounds, given.kinds, settings)
    if "digits" in given.parts:
        measure_rounds("digits", 3, given.rounds, given.kinds, {})


if __name__ == "__main__":
    main()
