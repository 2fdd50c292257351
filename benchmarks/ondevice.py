"""Clients that train in ExecuTorch, beside clients that train with torch.

    python benchmarks/ondevice.py parity --root CIFAR10 [model ...]   # one client's update
    python benchmarks/ondevice.py exact --root CIFAR10 [model ...]    # gradients against float64
    python benchmarks/ondevice.py steps --root CIFAR10 [model ...]    # where updates come apart
    python benchmarks/ondevice.py cost --root CIFAR10 [model ...]     # time, memory, size of files
    python benchmarks/ondevice.py mixed --root CIFAR10 --out FOLDER   # whole runs, three seeds

docs/on-device.md has the protocol of each, and what came out. Programs are made once and kept in
the cache; the first call takes minutes.
"""

import argparse
import importlib
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nefl
from nefl.artifacts.programfile import seal
from nefl.artifacts.trainable import trainable_to_json
from nefl.client.training import local_steps, own_generator
from nefl.config.reading import config_from
from nefl.engines.device_clients import DeviceClients
from nefl.engines.tuning import tune_process
from nefl.nesting.corners import extract
from nefl.nesting.spec import SubmodelSpec
from nefl.ondevice.plain import Trained
from nefl.ondevice.programs import Wanted
from nefl.ondevice.runtime import Session, lower
from nefl.running.assembly import Setting, assemble
from nefl.state import Tensors, TrainTask

MODELS = ("resnet8", "resnet20", "resnet18")
CLIENTS = 4
"""Clients whose updates are compared."""

ROUNDS: dict[str, dict[str, float]] = {
    "step": {"learning_rate": 0.05, "momentum": 0.9},
    "gentle": {"learning_rate": 0.01, "momentum": 0.0},
    "usual": {"learning_rate": 0.05, "momentum": 0.9},
}
"""Rounds after which updates are compared."""

EXAMPLES = {"step": 32, "gentle": 100, "usual": 100}
"""Images of a client in each: one batch, or three and a smaller one."""

LIMIT = 1e-4
"""What an update shall not differ by, relatively."""

TIMED = 3
"""Steps that are timed for each member, after one to warm up; the best counts."""

MIXED: dict[str, dict[str, Any]] = {
    "digits": {
        "rounds": 40,
        "model": {"name": "resnet8", "method": "nefl-wd"},
        "data": {"name": "digits"},
        "clients": {"count": 20, "per_round": 10},
        "local": {"epochs": 4},
        "server": {"evaluate_every": 40, "checkpoint_every": 10},
    },
    "cifar10": {
        "rounds": 10,
        "model": {"name": "resnet8", "method": "nefl-wd"},
        "data": {"name": "cifar10", "train": 10000, "test": 2000},
        "clients": {"count": 10, "per_round": 5},
        "local": {"epochs": 1},
        "server": {"evaluate_every": 10, "checkpoint_every": 5},
    },
}
"""The runs that are compared; batches have 32 examples, and a smaller one comes last."""

ARMS: dict[str, dict[str, Any]] = {
    "torch": {"client": "torch"},
    "mixed": {"client": "executorch", "client_share": 0.5},
}
SEEDS = (0, 1, 2)


def few_clients(
    model: str, root: str, client: str, examples: int, method: str = "nefl-wd", **local: float
) -> Setting:
    """Return a run of a few clients with so many images each, in batches of 32."""
    data = {"name": "digits"} if model == "resnet8" else {"name": "cifar10", "root": root}
    values = {
        "rounds": 1,
        "model": {"name": model, "method": method},
        "data": {**data, "train": CLIENTS * examples, "test": 100},
        "clients": {"count": CLIENTS, "per_round": 1},
        "local": {"epochs": 1, "weight_decay": 5e-4, "clip_norm": 0, **(local or ROUNDS["usual"])},
        "engine": {"name": "serial", "device": "cpu", "client": client},
    }
    return assemble(config_from(values))


def put(model: nn.Module, activation: nn.Module) -> nn.Module:
    """Put another activation in the place of every ReLU."""
    for name, child in list(model.named_modules()):
        if isinstance(child, nn.ReLU):
            model.set_submodule(name, activation)
    return model


class Smooth(nn.Module):
    """A ReLU without a kink (squareplus): its slope changes by little where a sign does."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (x + √(x² + 1)) / 2."""
        return 0.5 * (x + torch.sqrt(x * x + 1))


def smoothed(setting: Setting) -> Setting:
    """Return a run whose networks have such an activation in the place of ReLU."""
    build = setting.family.build

    def smooth(spec: SubmodelSpec) -> nn.Module:
        return put(build(spec), Smooth())

    return replace(setting, family=replace(setting.family, build=smooth))


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


def off(found: Tensors, wanted: Tensors) -> float:
    """Return how far gradients are from others, over the size of those."""
    apart = sum(float((found[n].double() - t.double()).square().sum()) for n, t in wanted.items())
    size = sum(float(t.double().square().sum()) for t in wanted.values())
    return math.sqrt(apart / size)


def copied(tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def parity(given: argparse.Namespace, model: str) -> Iterator[str]:
    """Compare clients' updates after one round, with each other and with float64."""
    for method in given.method:
        rounds = {
            name: few_clients(model, given.root, "torch", EXAMPLES[name], method, **local)
            for name, local in ROUNDS.items()
        }
        if given.smooth:
            rounds = {name: smoothed(setting) for name, setting in rounds.items()}
        first = next(iter(rounds.values()))
        clients = DeviceClients(first.config, first.family, first.task)
        members = given.member or range(1, len(first.family) + 1)
        members = [number for number in members if number <= len(first.family)]
        for chosen in [members] if given.together else [[number] for number in members]:
            for name, setting in rounds.items():
                found = Differences()
                for number in chosen:
                    began = extract(setting.initial_state(), setting.family, number)
                    for client in range(given.clients):
                        found.add(setting, clients, TrainTask(1, client, number), began)
                what = f"{model}{', smooth' if given.smooth else ''} | {method} | {name}"
                yield f"| {what} | {', '.join(map(str, chosen))} | {found} |"


class Differences:
    """How far updates of one task are from each other, over all tasks that are added."""

    def __init__(self) -> None:
        self._found: dict[str, list[float]] = {}
        self._losses: list[float] = []

    def add(
        self, setting: Setting, clients: DeviceClients, task: TrainTask, began: Tensors
    ) -> None:
        """Train a task in torch, without oneDNN, in float64 and in ExecuTorch, and compare."""
        site = setting.site()
        first = site.train(task, began)
        wanted = copied(first.trained)
        update = clients.train(task, began, *site.given_to(task))
        self._losses.append(abs(update.metrics["loss"] - first.metrics["loss"]))
        with torch.backends.mkldnn.flags(enabled=False):
            plain = copied(site.train(task, began).trained)
        exact = in_float64(setting, task, began)
        pairs = {
            "executorch - torch": (update.trained, wanted),
            "plain - torch": (plain, wanted),
            "executorch - plain": (update.trained, plain),
            "torch - float64": (wanted, exact),
            "plain - float64": (plain, exact),
            "executorch - float64": (update.trained, exact),
        }
        for pair, (one, other) in pairs.items():
            size, moved = apart(one, other, began)
            self._found.setdefault(pair, []).append(size)
            if pair == "executorch - torch":
                self._found.setdefault("of movement", []).append(moved)

    def __str__(self) -> str:
        """Tell of each pair the median, the largest and how many are above the limit."""
        shown = [
            f"{statistics.median(part):.1e} ({max(part):.1e}), {sum(p > LIMIT for p in part)}"
            for part in self._found.values()
        ]
        return f"{' | '.join(shown)} | {max(self._losses):.1e}"


class Decisions(nn.Module):
    """A ReLU that notes what it is given, call by call, or follows decisions made elsewhere.

    Args:
        given: for each call which values pass; left out, it decides as a ReLU does.
    """

    def __init__(self, given: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self._given = given

    def begin(self, given: Sequence[Tensor] | None) -> None:
        """Begin a batch, with its decisions if they are given."""
        self.seen, self._given = [], given

    def forward(self, x: Tensor) -> Tensor:
        """Let pass what is above zero, here or where the decisions were made."""
        number = len(self.seen)
        self.seen.append(x.detach())
        return x.relu() if self._given is None else x * self._given[number].to(x.dtype)


@dataclass(frozen=True)
class Stepped:
    """What a step of a client's training left: all tensors, and what ReLUs were given in it."""

    tensors: dict[str, Tensor]
    seen: list[Tensor]

    @property
    def passed(self) -> list[Tensor]:
        """Which values passed the ReLUs."""
        return [x > 0 for x in self.seen]


def stepwise(
    setting: Setting,
    task: TrainTask,
    began: Tensors,
    dtype: torch.dtype = torch.float32,
    held: Sequence[Stepped] | None = None,
) -> Iterator[Stepped]:
    """Train a task in torch, step by step; its ReLUs may follow those of another training."""
    activation = Decisions()
    model = setting.family.build(setting.family.specs[task.submodel - 1])
    put(model, activation).load_state_dict(dict(began))
    model.to(dtype).train()
    rows, how = setting.site().given_to(task)
    local = how.local
    descent = torch.optim.SGD(
        model.parameters(), local.learning_rate, local.momentum, weight_decay=local.weight_decay
    )
    with own_generator(task, how) as generator:
        for number, step in enumerate(local_steps(task, rows, how, generator)):
            activation.begin(held[number].passed if held else None)
            descent.param_groups[0]["lr"] = step.learning_rate
            descent.zero_grad()
            loss = setting.task.loss_of(model(step.inputs.to(dtype)), step.target)
            torch.autograd.backward(loss)
            descent.step()
            yield Stepped(copied(model.state_dict()), activation.seen)


def in_float64(setting: Setting, task: TrainTask, began: Tensors) -> dict[str, Tensor]:
    """Train a task in float64, on the batches that float32 has: what all others come near to."""
    *_, last = stepwise(setting, task, began, torch.float64)
    return last.tensors


def on_device_steps(setting: Setting, task: TrainTask, began: Tensors) -> Iterator[Stepped]:
    """Train a task in ExecuTorch, step by step; what its ReLUs are given stays inside."""
    clients = DeviceClients(setting.config, setting.family, setting.task)
    rows, how = setting.site().given_to(task)
    local = how.local
    with own_generator(task, how) as generator:
        steps = list(local_steps(task, rows, how, generator))
    first = steps[0]
    session = Session(clients.program(task.submodel).code, first.inputs[:2], first.target[:2])
    for name, tensor in session.parameters.items():
        tensor.copy_(began[name])
    descent = session.descent(local.learning_rate, local.momentum, local.weight_decay)
    for step in steps:
        session.run(step.inputs, step.target)
        descent.step(step.learning_rate)
        yield Stepped(copied(session.parameters), [])


def steps(given: argparse.Namespace, model: str) -> Iterator[str]:
    """Show after each step how far parameters are from float64, and how many ReLUs differed."""
    here, there = (
        few_clients(model, given.root, client, given.examples, given.method[0])
        for client in ("executorch", "torch")
    )
    state = there.initial_state()
    for number in given.member or range(1, len(there.family) + 1):
        began = extract(state, there.family, number)
        for client in range(given.clients):
            task = TrainTask(1, client, number)
            exact = list(stepwise(there, task, began, torch.float64))
            with torch.backends.mkldnn.flags(enabled=False):
                plain = list(stepwise(there, task, began))
            for name, found in {
                "torch": stepwise(there, task, began),
                "torch, decisions of float64": stepwise(there, task, began, held=exact),
                "torch without oneDNN": plain,
                "ExecuTorch": on_device_steps(here, task, began),
            }.items():
                shown = [distance(one, other) for one, other in zip(found, exact, strict=True)]
                yield f"| {model} | {number} | {client} | {name} | {' | '.join(shown)} |"


def distance(found: Stepped, wanted: Stepped) -> str:
    """Tell how far parameters are apart, and in how many ReLUs the step before went otherwise."""
    common = {n: t for n, t in wanted.tensors.items() if n in found.tensors and "running" not in n}
    far = off(found.tensors, {n: t for n, t in common.items() if t.dtype.is_floating_point})
    pairs = zip(found.seen, wanted.passed, strict=False)
    flipped = sum(int(((x > 0) != p).sum()) for x, p in pairs)
    return f"{far:.1e}{f', {flipped}' if found.seen else ''}"


class Noting(Trained):
    """A submodel with its loss, which also gives out what its ReLUs were given."""

    def __init__(self, model: nn.Module, task: nefl.Task, noted: Decisions) -> None:
        super().__init__(model, task.loss_of)
        self._noted = noted

    def forward(self, inputs: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """Return the mean loss, statistics, and the inputs of all ReLUs."""
        self._noted.seen.clear()
        outputs = super().forward(inputs, target)
        return *outputs, *self._noted.seen


class Batch:
    """One batch and one submodel's weights, on which runtimes are held against float64."""

    def __init__(self, setting: Setting, number: int) -> None:
        self._setting, self._number = setting, number
        self._weights = extract(setting.initial_state(), setting.family, number)
        self.inputs, self.target = self._wanted().sample()

    def _wanted(self) -> Wanted:
        config = self._setting.config
        batch = config.local.batch_size
        return Wanted(self._setting.family, self._setting.task, batch, config.model.name, "")

    def _model(self, activation: nn.Module) -> nn.Module:
        made = put(
            self._setting.family.build(self._setting.family.specs[self._number - 1]), activation
        )
        made.load_state_dict(dict(self._weights))
        return made.train()

    def torch(self, activation: nn.Module, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Return torch's gradients."""
        model = self._model(activation).to(dtype)
        loss = self._setting.task.loss_of(model(self.inputs.to(dtype)), self.target)
        torch.autograd.backward(loss)
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    def executorch(self, activation: nn.Module, noted: Decisions) -> dict[str, Tensor]:
        """Return the gradients of a program made for this batch alone; what is noted is its own."""
        network = Noting(self._model(activation), self._setting.task, noted)
        graph = torch.export.export(network, (self.inputs, self.target))
        session = Session(lower(graph), self.inputs, self.target)
        for name, tensor in session.parameters.items():
            tensor.copy_(self._weights[name])
        outputs = session.run(self.inputs, self.target)
        noted.seen = [tensor.clone() for tensor in outputs[len(outputs) - len(noted.seen) :]]
        return {name: tensor.clone() for name, tensor in session.gradients.items()}


def exact(model: str, root: str, members: Sequence[int]) -> Iterator[str]:
    """Hold one batch's gradients against float64: with ReLU, its decisions held, no kink."""
    setting = few_clients(model, root, "torch", 32)
    for number in members or range(1, len(setting.family) + 1):
        batch, decided = Batch(setting, number), Decisions()
        wanted = batch.torch(decided, torch.float64)
        passed = [x > 0 for x in decided.seen]
        for name, make in (
            ("ReLU", Decisions),
            ("ReLU, decisions of float64", lambda passed=passed: Decisions(passed)),
            ("smooth", Smooth),
        ):
            if name == "smooth":
                wanted = batch.torch(Smooth(), torch.float64)
            found, flipped = [], []
            for runtime in ("torch", "torch without oneDNN", "executorch"):
                activation = make()
                noted = activation if isinstance(activation, Decisions) else Decisions()
                with torch.backends.mkldnn.flags(enabled=runtime != "torch without oneDNN"):
                    got = (
                        batch.executorch(activation, noted)
                        if runtime == "executorch"
                        else batch.torch(activation)
                    )
                found.append(off(got, wanted))
                seen = zip(noted.seen, passed, strict=False)
                flipped.append(sum(int(((x > 0) != p).sum()) for x, p in seen))
            values = sum(p.numel() for p in passed)
            shown = " | ".join(f"{off:.1e}, {n}" for off, n in zip(found, flipped, strict=True))
            yield f"| {model} | {number} | {name} | {shown} | {values:,} |"


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
    # Linux: the largest memory is counted anew from here. That of getrusage may be the parent's.
    Path("/proc/self/clear_refs").write_text("5")
    before, found = memory("VmRSS"), []
    for turn in range(TIMED + 1):
        started = time.process_time()
        site.train(TrainTask(turn + 1, 0, number), began)
        found.append(time.process_time() - started)
    return {"seconds": min(found[1:]), "bytes": memory("VmHWM") - before}


def memory(name: str) -> int:
    """Return what Linux tells of this process's memory, in bytes."""
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(f"{name}:")
    )
    return int(line.split()[1]) * 1024


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
    parser.add_argument("what", choices=("parity", "exact", "steps", "cost", "mixed", "one"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--root", default="", help="the folder of CIFAR-10")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where runs are kept")
    parser.add_argument("--examples", type=int, default=100, help="steps: images of a client")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="updates that are compared")
    parser.add_argument("--member", type=int, nargs="*", default=(), help="only these members")
    parser.add_argument("--method", nargs="*", default=["nefl-wd"], help="parity: the methods")
    parser.add_argument("--together", action="store_true", help="parity: members in one row")
    parser.add_argument("--smooth", action="store_true", help="parity: no kinks in place of ReLU")
    given = parser.parse_intermixed_args()
    if given.what == "one":
        model, client, number = given.names
        print(json.dumps(measure(model, given.root, client, int(number))))
        return
    tune_process(1)
    for name in given.names or (MIXED if given.what == "mixed" else MODELS):
        lines = {
            "parity": lambda name=name: parity(given, name),
            "steps": lambda name=name: steps(given, name),
            "exact": lambda name=name: exact(name, given.root, given.member),
            "cost": lambda name=name: cost(name, given.root, given.member),
            "mixed": lambda name=name: mixed(name, given.root, given.out),
        }[given.what]()
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    main()
