"""Whether a designed family is better than one by ratios, on devices of equal budgets.

    python benchmarks/fleets.py runs/fleets --recipe cifar10-resnet20-iid --seeds 0 1 2

Protocol, written before any run. Three fleets; what a device has is a share of what the full model
takes: training memory, time of a round, memory to run. For each fleet and seed the same run is
trained twice: with the family that `nefl design` chooses for the fleet, and with a family by ratios
in which every kind has the largest ratio, in steps of 0.05, whose member keeps to its budgets, as
one would find by trying. In both a client trains the largest member that fits its device.
Afterwards a kind of device is worth the accuracy of the largest member that keeps to all of its
budgets; if there is none, that counts as 0. Told are the worst kind and the mean over the
population. The design wins on a fleet if both are higher in the mean over seeds.

Then, of the first seed's designed run on each fleet, members are cut and scored at random (a search
of one generation without a limit): how well does the score by size rank them by accuracy?
(Spearman's rank correlation.)
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

import nefl
from nefl.config import RunConfig
from nefl.config.reading import config_from, parse_setting, with_settings
from nefl.elastic.budget import Budget
from nefl.estimate import check_run
from nefl.fleet.costs import Costs, costs_of
from nefl.fleet.fitting import FittedFamily, fit_family
from nefl.fleet.kinds import FleetFile, Kind
from nefl.fleet.searching import search_run
from nefl.recipes import recipe_values

DEADLINE = 60.0
STEP = 5
"""Hundredths between two ratios that are tried."""


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


def trained(config: RunConfig, folder: Path) -> list[float]:
    """Train a run, unless it is there; return the accuracy of each member."""
    summary = folder / "summary.json"
    if not summary.exists():
        nefl.train(config, folder)
    metrics: list[float] = json.loads(summary.read_text())["metrics"]["accuracy"]
    return metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out", type=Path, help="the folder of the runs")
    parser.add_argument("--recipe", default="cifar10-resnet20-iid")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--fleets", nargs="+", choices=FLEETS, default=list(FLEETS))
    parser.add_argument("--members", type=int, default=50, help="for the rank correlation")
    given = parser.parse_args()
    changes = dict(parse_setting(text) for text in given.settings)
    base = config_from(with_settings(recipe_values(given.recipe), changes), given.recipe)
    given.out.mkdir(parents=True, exist_ok=True)
    print("| fleet | family | seed | worst kind | mean | by kind |\n|---|---|---|---|---|---|")
    for name in given.fleets:
        fleet = fleet_for(FLEETS[name], *full_costs(base))
        fitted = fit_family(base, fleet)
        ratios = by_ratio(fitted, fleet)
        for seed in given.seeds:
            for family, config in (("designed", fitted.config), ("ratios", ratios)):
                run = replace(config, seed=seed)
                found = worth(fleet, run, trained(run, given.out / f"{name}-{family}-{seed}"))
                average = sum(fleet.share(k) * found[k.name] for k in fleet.devices)
                kinds = ", ".join(f"{k} {v:.4f}" for k, v in found.items())
                row = f"{min(found.values()):.4f} | {average:.4f} | {kinds}"
                print(f"| {name} | {family} | {seed} | {row} |", flush=True)
        rank(given.out / f"{name}-designed-{given.seeds[0]}", given.members)


def rank(run: Path, members: int) -> None:
    """Say how well size ranks members that are cut out of a run by their accuracy."""
    found = search_run(run, Budget(), population=members, generations=1)
    size = [np.sqrt(each.cost.params * each.cost.macs) for each in found.scored]
    scores = [each.score for each in found.scored]
    said = f"{spearmanr(size, scores).statistic:.3f} over {len(scores)} members"
    print(f"{run.name}: rank correlation of size and accuracy {said}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
