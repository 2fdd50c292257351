"""What Flower costs: bytes of each submodel, a client's start, and what a round adds.

    python benchmarks/flower.py [bytes] [start] [rounds] [digits]

`bytes` and `start` take seconds, `rounds` and `digits` minutes: they train the same recipe in this
process, in Flower's simulation and over nodes on loopback, check that the weights are the same bit
for bit, and compare the seconds of the rounds after the first. The clients have next to nothing to
compute, so what remains is the way there and back: of ResNet18 to five nodes (`rounds`), and of the
digits' small network to three. Nodes start a process for every message (cold), keep a trainer
alive (warm), or do that and look for work twice a second.
"""

import argparse
import json
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
from nefl.wire.layouts import travel_bytes

KINDS = ("simulation", "cold", "warm", "quick")
"""Flower's simulation; nodes that start a process for every message; nodes with a trainer that
stays alive; and those that also look for work more often."""

POLL = 0.5
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
        **settings,
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        values = read_run_settings(settings).config.to_dict()
        local = nefl.train(config_from(values | {"engine": {"name": "serial"}}), folder / "serial")
        found = {"serial": later_rounds(folder / "serial")}
        for kind in kinds:
            out = folder / kind
            run_on_flower(folder / f"flower-{kind}", settings | {"out": str(out)}, kind, nodes)
            summary = json.loads((out / "summary.json").read_text())
            assert summary["state_sha256"] == local.summary["state_sha256"]
            found[kind] = later_rounds(out)
        print(f"{what}, {nodes} clients, seconds of a round (median of those after the first)")
        for name, seconds in found.items():
            added = seconds - found["serial"]
            print(f"{name:>12} {seconds:8.2f} s, {added:8.2f} s more than in one process")


def later_rounds(out: Path) -> float:
    rounds = [float(event["seconds"]) for event in read_log(out) if event["event"] == "round"]
    return statistics.median(rounds[1:])


def run_on_flower(folder: Path, settings: dict[str, Any], kind: str, nodes: int) -> None:
    app = folder / "nested"
    clients = ClientsConfig(count=nodes, per_round=nodes)
    write_app(app, "digits", RunConfig(clients=clients))
    with Loopback(folder / "flower", simulation=kind == "simulation") as loopback:
        loopback.start_server()
        if kind != "simulation":
            for number in range(nodes):
                node = {"partition-id": number, "num-partitions": nodes}
                poll = POLL if kind == "quick" else None
                loopback.start_node(f"node{number}", node, warm=kind != "cold", poll=poll)
        loopback.run(app, settings, nodes=nodes)
        loopback.wait()


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
