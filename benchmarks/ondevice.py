"""Clients that train in ExecuTorch, beside clients that train with torch.

    python benchmarks/ondevice.py parity --root CIFAR10 [model ...]   # one client's update
    python benchmarks/ondevice.py cost --root CIFAR10 [model ...]     # time, memory, size of files
    python benchmarks/ondevice.py mixed --root CIFAR10 --out FOLDER   # whole runs, three seeds

docs/on-device.md has the protocol of each, and what came out. Programs are made once and kept in
the cache; the first call takes minutes.
"""

import argparse
import importlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nefl
from nefl.artifacts.programfile import seal
from nefl.artifacts.trainable import trainable_to_json
from nefl.config.reading import config_from
from nefl.engines.device_clients import DeviceClients
from nefl.engines.tuning import tune_process
from nefl.nesting.corners import extract
from nefl.running.assembly import Setting, assemble
from nefl.state import Tensors, TrainTask

MODELS = ("resnet8", "resnet20", "resnet18")
CLIENTS = 4
"""Clients whose updates are compared."""

LIMIT = 1e-4
"""What an update shall not differ by, relatively."""

TIMED = 3
"""Steps that are timed for each member, after one to warm up; the best counts."""

MIXED: dict[str, dict[str, Any]] = {
    "digits": {
        "rounds": 10,
        "model": {"name": "resnet8", "method": "nefl-wd"},
        "data": {"name": "digits"},
        "clients": {"count": 20, "per_round": 10},
        "local": {"epochs": 4},
        "server": {"evaluate_every": 10, "checkpoint_every": 5},
    },
    "cifar10": {
        "rounds": 8,
        "model": {"name": "resnet8", "method": "nefl-wd", "ratios": [0.3, 1.0]},
        "data": {"name": "cifar10", "train": 2000, "test": 1000},
        "clients": {"count": 10, "per_round": 4},
        "local": {"epochs": 1},
        "server": {"evaluate_every": 8, "checkpoint_every": 4},
    },
}
"""The runs that are compared; batches have 32 examples, and a smaller one comes last."""

ARMS: dict[str, dict[str, Any]] = {
    "torch": {"client": "torch"},
    "mixed": {"client": "executorch", "client_share": 0.5},
}
SEEDS = (0, 1, 2)


def few_clients(model: str, root: str, client: str, examples: int) -> Setting:
    """Return a run of a few clients with so many images each, in batches of 32."""
    data = {"name": "cifar10", "root": root, "train": CLIENTS * examples, "test": 100}
    values = {
        "rounds": 1,
        "model": {"name": model, "method": "nefl-wd"},
        "data": {"name": "digits"} if model == "resnet8" else data,
        "clients": {"count": 20 if model == "resnet8" else CLIENTS, "per_round": 1},
        "local": {"epochs": 1, "momentum": 0.9, "weight_decay": 5e-4, "learning_rate": 0.05},
        "engine": {"name": "serial", "device": "cpu", "client": client},
    }
    return assemble(config_from(values))


def apart(found: Tensors, wanted: Tensors, began: Tensors) -> tuple[float, float]:
    """Return how far tensors are apart, over their size and over their movement."""
    off = size = moved = 0.0
    for name, tensor in wanted.items():
        if tensor.dtype.is_floating_point:
            difference = float((found[name].double() - tensor.double()).square().sum())
            off, size = off + difference, size + float(tensor.double().square().sum())
            moved += float((tensor.double() - began[name].double()).square().sum())
        elif not torch.equal(found[name], tensor):
            raise SystemExit(f"{name}: {found[name]} instead of {tensor}")
    return (off / size) ** 0.5, (off / moved) ** 0.5


def copied(tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def parity(model: str, root: str, examples: int, members: Sequence[int]) -> Iterator[str]:
    """Compare clients' updates after one round; torch with other kernels is the yardstick."""
    here, there = (few_clients(model, root, c, examples) for c in ("executorch", "torch"))
    state = there.initial_state()
    on_device, with_torch = here.site(), there.site()
    for number in members or range(1, len(there.family) + 1):
        began = extract(state, there.family, number)
        found, itself, losses = [], [], []
        for client in range(CLIENTS):
            task = TrainTask(1, client, number)
            first = with_torch.train(task, began)
            wanted = copied(first.trained)
            update = on_device.train(task, began)
            found.append(apart(update.trained, wanted, began))
            losses.append(abs(update.metrics["loss"] - first.metrics["loss"]))
            with torch.backends.mkldnn.flags(enabled=False):
                itself.append(apart(with_torch.train(task, began).trained, wanted, began))
        shown = [
            f"{statistics.median(part):.1e} ({max(part):.1e}), {sum(p > LIMIT for p in part)}"
            for rows in (found, itself)
            for part in zip(*rows, strict=True)
        ]
        yield f"| {model} | {number} | {' | '.join(shown)} | {max(losses):.1e} |"


def measure(model: str, root: str, client: str, number: int) -> dict[str, float]:
    """Time steps of one member and find its memory, in this process."""
    tune_process(1)
    setting = few_clients(model, root, client, 32)
    site, state = setting.site(), setting.initial_state()
    began = extract(state, setting.family, number)
    if client == "executorch":
        DeviceClients(setting.config, setting.family, setting.task).program(number)
        # Its Python packages are no part of what a device needs, nor is torch, which is there too.
        importlib.import_module("executorch.extension.training")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = []
    for turn in range(TIMED + 1):
        started = time.process_time()
        site.train(TrainTask(turn + 1, 0, number), began)
        found.append(time.process_time() - started)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": min(found[1:]), "bytes": (after - before) * 1024}


def cost(model: str, root: str, members: Sequence[int]) -> Iterator[str]:
    """Compare a step's time and memory, each member and runtime in a process of its own."""
    setting = few_clients(model, root, "executorch", 32)
    programs = DeviceClients(setting.config, setting.family, setting.task)
    for number in members or range(1, len(setting.family) + 1):
        program = programs.program(number)
        size = len(seal(program.code, trainable_to_json(program.card).encode()))
        parameters = setting.family.meta_module(number).parameters()
        params = sum(parameter.numel() for parameter in parameters)
        found = {}
        for client in ("torch", "executorch"):
            command = [sys.executable, __file__, "one", "--root", root, model, client, str(number)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[client] = json.loads(done.stdout.splitlines()[-1])
        here, there = found["executorch"], found["torch"]
        yield (
            f"| {model} | {number} | {params:,} | {size:,} | {1e3 * there['seconds']:.0f} | "
            f"{1e3 * here['seconds']:.0f} | {here['seconds'] / there['seconds']:.1f} | "
            f"{there['bytes'] / 2**20:.0f} | {here['bytes'] / 2**20:.0f} |"
        )


def mixed(data: str, root: str, out: Path) -> Iterator[str]:
    """Compare whole runs: all clients with torch, and every second one in ExecuTorch."""
    averages: dict[str, list[float]] = {}
    for arm, engine in ARMS.items():
        for seed in SEEDS:
            folder = out / f"{data}-{arm}-{seed}"
            values = {**MIXED[data], "seed": seed}
            values["engine"] = {"name": "serial", "device": "cpu", **engine}
            if data == "cifar10":
                values["data"] = {**values["data"], "root": root}
            done = (folder / "summary.json").is_file()
            result = nefl.resume(folder) if done else nefl.train(values, folder)
            accuracies = result.summary["metrics"]["accuracy"]
            averages.setdefault(arm, []).append(100 * statistics.mean(accuracies))
            shown = " ".join(f"{100 * value:.1f}" for value in accuracies)
            yield f"| {data} | {arm} | {seed} | {averages[arm][-1]:.2f} | {shown} |"
    spread = max(averages["torch"]) - min(averages["torch"])
    moved = statistics.mean(averages["mixed"]) - statistics.mean(averages["torch"])
    yield f"{data}: mixed - torch {moved:+.2f} points; spread of torch over seeds {spread:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("parity", "cost", "mixed", "one"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--root", default="", help="the folder of CIFAR-10")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where runs are kept")
    parser.add_argument("--examples", type=int, default=100, help="images of a client")
    parser.add_argument("--member", type=int, nargs="*", default=(), help="only these members")
    given = parser.parse_intermixed_args()
    if given.what == "one":
        model, client, number = given.names
        print(json.dumps(measure(model, given.root, client, int(number))))
        return
    tune_process(1)
    for name in given.names or (MIXED if given.what == "mixed" else MODELS):
        lines = {
            "parity": lambda name=name: parity(name, given.root, given.examples, given.member),
            "cost": lambda name=name: cost(name, given.root, given.member),
            "mixed": lambda name=name: mixed(name, given.root, given.out),
        }[given.what]()
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    main()
