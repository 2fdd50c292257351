"""Whether families that `nefl design` chooses keep to the budgets of their fleets as measured.

    python benchmarks/budgets.py --set data.root=PATH/TO/cifar10

The fleets are those of `fleets.py`. Each kind's member is trained here as a client of the run
trains it, a whole round of one client, and asked for one example. Memory is the most that torch's
allocator has given out at a time; the time is that of this machine, made longer by how many times
slower the kind is than `nefl measure` finds this machine to be, and what is sent at its bandwidth.
"""

import argparse
import time
from collections.abc import Callable

import torch
from fleets import FLEETS, fleet_for, full_costs
from torch.profiler import ProfilerActivity, profile

from nefl.config.reading import config_from, parse_setting, with_settings
from nefl.engines.serial import SerialEngine
from nefl.engines.tuning import tuned_process
from nefl.fleet.fitting import FittedFamily, fit_family
from nefl.fleet.kinds import FleetFile
from nefl.fleet.measuring import measure_device
from nefl.recipes import recipe_values
from nefl.running.assembly import assemble
from nefl.state import TrainTask

REPEATS = 3


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
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)


def measure(name: str, fleet: FleetFile, fitted: FittedFamily) -> None:
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
    parser.add_argument("--recipe", default="small-cifar10-resnet20_pooled-nefl-wd")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    given = parser.parse_args()
    changes = dict(parse_setting(text) for text in given.settings)
    base = config_from(with_settings(recipe_values(given.recipe), changes), given.recipe)
    print("| fleet | device | member | training memory | a round | memory to run |")
    print("|---|---|---|---:|---:|---:|")
    for name, devices in FLEETS.items():
        fleet = fleet_for(devices, *full_costs(base))
        measure(name, fleet, fit_family(base, fleet))


if __name__ == "__main__":
    main()
