"""Whether a designed family is better than one by ratios, on devices of equal budgets.

    python benchmarks/fleets.py runs/fleets --set data.root=PATH/TO/cifar10
    python benchmarks/fleets.py --budgets --set data.root=PATH/TO/cifar10

Protocol, written before any run. Three fleets; what a device has is a share of what the full model
takes: training memory, time of a round, memory to run. For each fleet and seed the same run is
trained three times: with the family that `nefl design` chooses for the fleet by size, with the one
that it chooses by evidence (`--score trained`, one warm-up for all fleets, on a seed of its own, so
with other examples), and with a family by ratios in which every kind has the largest ratio, in
steps of 0.05, whose member keeps to its budgets, as one would find by trying. In all a client
trains the largest member that fits its device. Afterwards a kind of device is worth the accuracy of
the largest member that keeps to all of its budgets; if there is none, that counts as 0. Told are
the worst kind and the mean over the population. A design wins on a fleet if both are higher than by
ratios in the mean over seeds.

Then, of the first seed's designed run on each fleet, fifty members are cut and scored at random (a
search of one generation without a limit). Spearman's rank correlation says how well the score on
the examples that choose ranks their accuracy on as many others, how well size does, and how well
MACs rank the latency that is measured.

`--budgets` asks instead whether designed members keep to their budgets as measured. Each kind's
member is trained here as a client of the run trains it, a whole round of one client, and asked for
one example. Memory is the most that torch's allocator has given out at a time; the time is that of
this machine, made longer by how many times slower the kind is than `nefl measure` finds this
machine to be, and what is sent at its bandwidth.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from torch.profiler import ProfilerActivity, profile

import nefl
from nefl.config import RunConfig
from nefl.config.reading import config_from, parse_setting, with_settings
from nefl.elastic.budget import Budget
from nefl.engines.serial import SerialEngine
from nefl.engines.tuning import tuned_process
from nefl.estimate import check_run
from nefl.export.source import open_run
from nefl.fleet.costs import Costs, costs_of
from nefl.fleet.evidence import TrainedScore
from nefl.fleet.fitting import FittedFamily, fit_family
from nefl.fleet.kinds import FleetFile, Kind
from nefl.fleet.laboratory import Laboratory
from nefl.fleet.measuring import measure_device
from nefl.fleet.searching import EXAMPLES, search_run
from nefl.recipes import recipe_values
from nefl.running.assembly import assemble
from nefl.state import TrainTask

WARM_UP_SEED = 9
DEADLINE = 60.0
STEP = 5
"""Hundredths between two ratios that are tried."""

TIMINGS = 3
"""Times that a client's round is timed; the best counts."""


@dataclass(frozen=True)
class Device:
    """A kind of device by shares of what the full model takes; 1.1 is enough for all of it."""

    name: str
    share: float
    memory: float
    time: float
    run_memory: float


FLEETS: dict[str, Sequence[Device]] = {
    "phones": (
        Device("old phone", 5, 0.35, 0.3, 1.1),
        Device("phone", 3, 0.6, 0.6, 1.1),
        Device("new phone", 2, 1.1, 1.1, 1.1),
    ),
    "phones-and-laptops": (
        Device("old phone", 4, 0.25, 0.4, 0.5),
        Device("new phone", 4, 0.7, 0.5, 1.1),
        Device("laptop", 2, 1.1, 1.1, 1.1),
    ),
    "microcontrollers-to-servers": (
        Device("microcontroller", 4, 0.12, 0.15, 0.15),
        Device("old phone", 3, 0.3, 0.3, 0.5),
        Device("laptop", 2, 0.8, 0.7, 1.1),
        Device("server", 1, 1.1, 1.1, 1.1),
    ),
}


def fleet_for(devices: Sequence[Device], full: Costs, work: int) -> FleetFile:
    """Return a fleet whose budgets are shares of what the full model takes.

    Args:
        devices: the kinds.
        full: the full model's costs.
        work: examples times epochs of a client in a round.
    """
    macs = float(full.train_macs[0]) * work
    kinds = tuple(
        Kind(
            device.name,
            device.memory * float(full.train_memory[0]),
            device.time * macs / (0.9 * DEADLINE),
            device.time * 2 * float(full.payload[0]) / (0.1 * DEADLINE),
            device.share,
            inference_memory=device.run_memory * float(full.inference_memory[0]),
        )
        for device in devices
    )
    return FleetFile(kinds, deadline=DEADLINE)


def worth(fleet: FleetFile, config: RunConfig, accuracies: Sequence[float]) -> dict[str, float]:
    """Return the accuracy that each kind of device gets out of a trained family."""
    setting, _ = check_run(config)
    costs = costs_of(setting.family, setting.profiles(), setting.task.signature)
    examples, found = int(setting.partition.sizes.max()), {}
    for kind in fleet.devices:
        uses = fleet.uses(kind, costs, config.local.epochs, examples)
        limits = fleet.limits(kind).items()
        fitting = np.logical_and.reduce([uses[name] <= limit for name, limit in limits])
        numbers = np.flatnonzero(fitting)
        found[kind.name] = accuracies[int(numbers[-1])] if len(numbers) else 0.0
    return found


def full_costs(config: RunConfig) -> tuple[Costs, int]:
    """Return what the full model costs in a run, and a client's examples times epochs."""
    setting, _ = check_run(replace(config, model=replace(config.model, ratios=(1.0,))))
    costs = costs_of(setting.family, setting.profiles(), setting.task.signature)
    return costs, int(setting.partition.sizes.max()) * config.local.epochs


def by_ratio(fitted: FittedFamily, fleet: FleetFile) -> RunConfig:
    """Return the same run with the largest ratios that fit the fleet's devices."""

    def config(*ratios: float) -> RunConfig:
        model = replace(fitted.config.model, members=(), ratios=(*ratios, 1.0))
        return replace(fitted.config, model=model)

    def fitting(hundredths: int) -> set[str]:
        run = config(hundredths / 100)
        return {kind for kind, there in worth(fleet, run, (1.0, 0.0)).items() if there}

    # Of two members the larger one's worth is 0 here: what is left are kinds that have the smaller.
    left, ratios = {kind.name for kind in fleet.devices}, []
    left -= {kind for kind, there in worth(fleet, config(), (1.0,)).items() if there}
    for hundredths in range(100 - STEP, 0, -STEP):
        if found := fitting(hundredths) & left:
            left -= found
            ratios.append(hundredths / 100)
        if not left:
            break
    return config(*reversed(ratios))


def members_of(config: RunConfig) -> str:
    """Say what the members of a run are, in a few words."""
    ratios = config.model.ratios or ()
    listed = [f"{m.width:g} {m.blocks or ''}".strip() for m in config.model.members]
    return "; ".join([*map(str, ratios), *listed])


def trained(config: RunConfig, folder: Path) -> list[float]:
    """Train a run, unless it is there; return the accuracy of each member."""
    summary = folder / "summary.json"
    if not summary.exists():
        nefl.train(config, folder)
    metrics: list[float] = json.loads(summary.read_text())["metrics"]["accuracy"]
    return metrics


def allocated(work: Callable[[], object]) -> int:
    """Return the most bytes that torch's allocator gives out at a time while something is done."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    recorded.events()
    raw = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(raw, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def best_seconds(work: Callable[[], object]) -> float:
    found = []
    for _ in range(TIMINGS):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)


def show_budgets(name: str, fleet: FleetFile, fitted: FittedFamily) -> None:
    """Print what each kind's member takes of its budgets."""
    config = fitted.config
    setting = assemble(config)
    family, signature = setting.family, setting.task.signature
    engine, state = SerialEngine(setting.site(), family), setting.initial_state()
    batch = config.local.batch_size
    with tuned_process(config.engine.threads):
        here = measure_device("here", config.model.name, signature, batch_size=batch)
        for kind, placed in zip(fleet.devices, fitted.placements, strict=True):
            member = placed.member
            task = TrainTask(1, 0, member)

            def train(task: TrainTask = task) -> object:
                return list(engine.train(state, [task]))

            def predict(member: int = member) -> object:
                module = family.build(family.specs[member - 1]).eval()
                with torch.inference_mode():
                    return module(signature.example(1))

            slower = here.macs_per_second / kind.macs_per_second
            sent = 2 * fitted.profiles[member - 1].payload_bytes / kind.bandwidth
            train()
            taken = {
                "training memory": (allocated(train) / 1e6, kind.memory / 1e6, "MB"),
                "round": (best_seconds(train) * slower + sent, fleet.deadline or 0.0, "s"),
            }
            if kind.inference_memory is not None:
                taken["memory to run"] = (
                    allocated(predict) / 1e6,
                    kind.inference_memory / 1e6,
                    "MB",
                )
            cells = " | ".join(
                f"{used:.3g} of {limit:.3g} {unit}" + ("" if used <= limit else " (**over**)")
                for used, limit, unit in taken.values()
            )
            print(
                f"| {name} | {kind.name} | {fitted.described[member - 1]} | {cells} |", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out", type=Path, nargs="?", help="the folder of the runs")
    parser.add_argument("--recipe", default="small-cifar10-resnet20_pooled-nefl-wd")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--fleets", nargs="+", choices=FLEETS, default=list(FLEETS))
    parser.add_argument("--members", type=int, default=50, help="for the rank correlation")
    parser.add_argument("--budgets", action="store_true", help="what members take; no runs")
    given = parser.parse_args()
    if given.out is None and not given.budgets:
        parser.error("give the folder of the runs, or --budgets")
    changes = dict(parse_setting(text) for text in given.settings)
    base = config_from(with_settings(recipe_values(given.recipe), changes), given.recipe)
    if given.budgets:
        print("| fleet | device | member | training memory | a round | memory to run |")
        print("|---|---|---|---:|---:|---:|")
        for name in given.fleets:
            fleet = fleet_for(FLEETS[name], *full_costs(base))
            show_budgets(name, fleet, fit_family(base, fleet))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    print("| fleet | family | seed | worst kind | mean | by kind |\n|---|---|---|---|---|---|")
    for name in given.fleets:
        fleet = fleet_for(FLEETS[name], *full_costs(base))
        fitted = fit_family(base, fleet)
        warmed = replace(base, seed=WARM_UP_SEED)
        score = TrainedScore(warmed, given.out / "warm-up", max(1, base.rounds // 5))
        families = {
            "designed": fitted.config,
            "by evidence": fit_family(base, fleet, score=score).config,
            "ratios": by_ratio(fitted, fleet),
        }
        for family, config in families.items():
            print(f"{name}, {family}: {members_of(config)}", file=sys.stderr, flush=True)
        for seed in given.seeds:
            for family, config in families.items():
                run = replace(config, seed=seed)
                found = worth(
                    fleet,
                    run,
                    trained(run, given.out / f"{name}-{family.replace(' ', '-')}-{seed}"),
                )
                average = sum(fleet.share(k) * found[k.name] for k in fleet.devices)
                kinds = ", ".join(f"{k} {v:.4f}" for k, v in found.items())
                row = f"{min(found.values()):.4f} | {average:.4f} | {kinds}"
                print(f"| {name} | {family} | {seed} | {row} |", flush=True)
        rank(given.out / f"{name}-designed-{given.seeds[0]}", given.members)


def rank(run: Path, members: int) -> None:
    """Say how well scores, size and MACs rank members that are cut out of a run."""
    timed = Budget(latency=1e6)
    found = search_run(run, timed, population=members, generations=1)
    source = open_run(run)
    with tuned_process(source.setting.config.engine.threads):
        laboratory = Laboratory(source, run, timed, EXAMPLES)
        accuracy = [laboratory.check(each) for each in found.scored]
    size = [np.sqrt(each.cost.params * each.cost.macs) for each in found.scored]
    score = [each.score for each in found.scored]
    macs = [each.cost.macs for each in found.scored]
    latency = [each.cost.latency for each in found.scored]
    for what, one, other in (
        ("score and accuracy", score, accuracy),
        ("size and accuracy", size, accuracy),
        ("MACs and latency", macs, latency),
    ):
        said = f"{spearmanr(one, other).statistic:.3f} over {len(one)} members"
        print(f"{run.name}: rank correlation of {what} {said}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
