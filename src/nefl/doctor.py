"""What `nefl doctor` finds out of a machine: whether it trains as nefl promises, and how fast.

Short runs on synthetic images are made on the CPU and on every other device, and compared.
"""

import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from nefl.artifacts.checkpoint import state_sha256
from nefl.artifacts.facts import versions
from nefl.client.optimiser import make_optimiser
from nefl.client.training import LocalTraining, count_steps, local_steps, own_generator
from nefl.config import RunConfig
from nefl.config.reading import config_from
from nefl.engines.devices import (
    describe_gpu,
    free_bytes,
    gpus,
    has_precision,
    pick_device,
    wait_for,
)
from nefl.engines.tuning import tuned_for
from nefl.nesting.corners import extract
from nefl.own_code import describe
from nefl.rounds import Observer, RoundReport
from nefl.running import lifecycle
from nefl.running.assembly import assemble
from nefl.state import Evaluation, ServerState, TrainTask

FAR = 1e-3
"""How far weights on another device may be from the CPU's after a round in float32, relative to
the largest of their tensor: kernels sum in other orders."""

LOSS_APART = 0.1
"""How far the loss in another precision may be from float32's, relative to it."""

SPEED_STEPS = 6
"""Local steps that are timed at once."""

REPEATS = 3
"""How often they are timed; the median counts."""

Verdict = Literal["ok", "wrong", "not here", "measured"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: the question.
        where: the device.
        verdict: `ok`, `wrong`, `not here` where the device lacks it, or `measured` where there is
            no right and wrong.
        told: the answer, for people.
        values: its numbers.
    """

    what: str
    where: str
    verdict: Verdict
    told: str
    values: dict[str, float | str]


@dataclass(frozen=True)
class Report:
    """All that was found.

    Attributes:
        about: versions, processor, memory.
        devices: the GPUs that there are.
        findings: what was looked at, in order.
    """

    about: dict[str, Any]
    devices: tuple[dict[str, Any], ...]
    findings: tuple[Finding, ...]

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """What is not as it should be."""
        return tuple(found for found in self.findings if found.verdict == "wrong")

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, ready for JSON."""
        return {"healthy": not self.wrong, **asdict(self)}


def examine(
    names: Sequence[str] = (), tell: Callable[[Finding], None] = lambda _found: None
) -> Report:
    """Examine the CPU and other devices.

    Args:
        names: devices besides the CPU; every CUDA device if left out.
        tell: called with each finding as it is made.

    Raises:
        ConfigError: if there is no such device here.
    """
    cpu = torch.device("cpu")
    others = [d for d in map(pick_device, names) if d != cpu] if names else list(gpus())
    findings = []
    with tempfile.TemporaryDirectory(prefix="nefl-doctor-") as folder:
        trials = _Trials(Path(folder))
        for found in _look(trials, [cpu, *others]):
            tell(found)
            findings.append(found)
    return Report(about_machine(), tuple(map(describe_gpu, gpus())), tuple(findings))


def about_machine() -> dict[str, Any]:
    """Return what a result may depend on, and what speed does."""
    library = torch.backends.cudnn
    cudnn = library.version() if library.is_available() else None  # type: ignore[no-untyped-call]
    return {
        **versions(),
        "cuda": torch.version.cuda,
        "cudnn": cudnn,
        "cores": os.cpu_count(),
        "processor": _processor(),
        "free_memory": free_bytes(torch.device("cpu")),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


class _Trials:
    """Short runs, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0

    def run(self, engine: dict[str, Any], precision: str = "float32") -> "_Trial":
        """Make a run of one round."""
        self._made += 1
        config = _config("resnet8", (3, 8, 8), engine, precision, self._folder)
        loss = _Loss()
        done = lifecycle.train(config, self._folder / f"run-{self._made}", observers=[loss])
        state = done.state.to(torch.device("cpu"))
        return _Trial(state, state_sha256(state), loss.found)

    def speed(self, device: torch.device) -> tuple[float, float]:
        """Return seconds of a local step, in a bare loop and in nefl."""
        size = 3, 32, 32
        return _time_steps(_config("resnet20", size, _alone(device), "float32", self._folder))


class _Loss(Observer):
    """Takes note of the mean loss of all submodels on the test set."""

    found = math.nan

    def round_done(
        self,
        state: ServerState,  # noqa: ARG002
        report: RoundReport,  # noqa: ARG002
        evaluations: Sequence[Evaluation] | None,
    ) -> None:
        """Take it from the round's evaluation."""
        self.found = statistics.fmean(e.loss for e in evaluations or ())


@dataclass(frozen=True, eq=False)
class _Trial:
    """What came out of a short run: its weights, their sum, and the mean loss of all submodels."""

    state: ServerState
    sum: str
    loss: float


def _config(
    model: str, shape: tuple[int, int, int], engine: dict[str, Any], precision: str, folder: Path
) -> RunConfig:
    return config_from(
        {
            "rounds": 1,
            "model": {"name": model, "method": "nefl-wd"},
            "data": {
                "name": "synthetic",
                "cache": str(folder / "data"),
                "options": {"shape": list(shape), "train": 32 * SPEED_STEPS, "test": 50},
            },
            "clients": {"count": 3, "per_round": 3},
            "local": {"epochs": 2, "batch_size": 32, "precision": precision},
            "engine": engine,
        }
    )


def _look(trials: _Trials, devices: Sequence[torch.device]) -> Iterator[Finding]:
    reference: _Trial | None = None
    for device in devices:
        try:
            trial = trials.run(_alone(device))
        except Exception as error:  # whatever the machine may lack: that is what is asked for
            yield Finding("trains in float32", str(device), "wrong", describe(error), {})
            continue
        loss = {"loss": trial.loss}
        yield Finding("trains in float32", str(device), "ok", f"loss {trial.loss:.4f}", {**loss})
        yield _found("repeats to the bit", device, _repeats, trials, device, trial)
        if reference is not None:
            yield _found("agrees with the CPU", device, _parity, trial, reference)
        reference = reference or trial
        yield _found("workers agree with one process", device, _workers, trials, device, trial)
        for precision in ("tf32", "bf16", "fp16"):
            what = f"trains in {precision}"
            yield _found(what, device, _precision, trials, device, precision, trial)
        yield _found("speed", device, _speed, trials, device)


Answer = tuple[Verdict, str, dict[str, float | str]]
"""A verdict, what is told of it, and its numbers."""


def _found(what: str, device: torch.device, look: Callable[..., Answer], *given: Any) -> Finding:
    try:
        return Finding(what, str(device), *look(*given))
    except Exception as error:  # as above: one thing that fails must not hide the others
        return Finding(what, str(device), "wrong", describe(error), {})


def _alone(device: torch.device) -> dict[str, Any]:
    """Return the engine that is one process on a device."""
    return {"name": "serial", "devices": str(device)}


def _repeats(trials: _Trials, device: torch.device, trial: _Trial) -> Answer:
    again = trials.run(_alone(device))
    if again.sum == trial.sum:
        return "ok", "the same run twice gives the same weights", {"state_sha256": trial.sum}
    return "wrong", f"the same run gave {trial.sum[:12]}, then {again.sum[:12]}", {}


def _parity(trial: _Trial, reference: _Trial) -> Answer:
    apart = largest_difference(trial.state, reference.state)
    told = f"weights differ by at most {apart:.1e} of the largest; {FAR:.0e} is allowed"
    return "ok" if apart <= FAR else "wrong", told, {"difference": apart}


def largest_difference(state: ServerState, reference: ServerState) -> float:
    """Return the largest difference of two states' shared weights, relative to the largest weight
    of the tensor.
    """
    found = 0.0
    for name, expected in reference.shared.items():
        wanted, got = expected.double(), state.shared[name].double()
        if wanted.numel():
            scale = float(wanted.abs().max()) or 1.0
            apart = float((got - wanted).abs().max()) / scale
            found = math.inf if math.isnan(apart) else max(found, apart)
    return found


def _workers(trials: _Trials, device: torch.device, trial: _Trial) -> Answer:
    engine = {"name": "workers", "devices": [str(device), str(device)]}
    if trials.run(engine).sum == trial.sum:
        return "ok", "two processes give the weights of one", {}
    return "wrong", "two processes give other weights than one", {}


def _precision(trials: _Trials, device: torch.device, precision: str, trial: _Trial) -> Answer:
    if not has_precision(precision, device):
        return "not here", f"{device} does not compute in it, or only slowly", {}
    first, again = (trials.run(_alone(device), precision) for _ in range(2))
    values: dict[str, float | str] = {"loss": first.loss, "float32": trial.loss}
    if first.sum != again.sum:
        return "wrong", "the same run twice gives other weights", values
    if not abs(first.loss - trial.loss) <= LOSS_APART * abs(trial.loss):
        return "wrong", f"loss {first.loss:.4f}, in float32 {trial.loss:.4f}", values
    return "ok", f"loss {first.loss:.4f}, in float32 {trial.loss:.4f}; repeats to the bit", values


def _speed(trials: _Trials, device: torch.device) -> Answer:
    bare, ours = trials.speed(device)
    told = f"a step takes {ours * 1e3:.1f} ms, in a bare loop {bare * 1e3:.1f} ms"
    values: dict[str, float | str] = {"bare": bare, "nefl": ours, "ratio": ours / bare}
    return "measured", f"{told}: {ours / bare:.2f} times as long", values


def _time_steps(config: RunConfig) -> tuple[float, float]:
    """Time local steps of the full model, in a bare loop and as clients train, in turns."""
    setting = assemble(config)
    submodel = len(setting.family)
    task = TrainTask(1, 0, submodel)
    with tuned_for(config):
        site = setting.site()
        weights = extract(setting.initial_state(), setting.family, submodel)
        rows, how = site.given_to(task)
        steps = count_steps(len(next(iter(rows.values()))), config.local)
        model = setting.family.build(setting.family.specs[-1]).to(how.device)

        def ours() -> None:
            site.train(task, weights)

        def bare() -> None:
            _bare_loop(model, rows, how, task)

        taken: dict[str, list[float]] = {"bare": [], "ours": []}
        for repeat in range(REPEATS + 1):  # the first one warms up
            for name, loop in (("bare", bare), ("ours", ours)):
                started = time.perf_counter()
                loop()
                wait_for(how.device)
                if repeat:
                    taken[name].append((time.perf_counter() - started) / steps)
    return statistics.median(taken["bare"]), statistics.median(taken["ours"])


def _bare_loop(
    model: torch.nn.Module, rows: dict[str, torch.Tensor], how: LocalTraining, task: TrainTask
) -> None:
    """Train on the same batches, with nothing federated around it."""
    optimiser = make_optimiser(model.train(), how.local)
    with own_generator(task, how) as generator:
        for step in local_steps(task, rows, how, generator):
            loss = how.learned.loss_of(model(step.inputs), step.target)
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            optimiser.step()


def told_of(gpu: dict[str, Any]) -> str:
    """Say what a GPU is, in a line."""
    return f"{gpu['device']}: {gpu['name']}, {gpu['memory'] / 2**30:.1f} GiB"
