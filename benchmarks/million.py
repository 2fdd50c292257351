"""What a fleet of a million clients costs a server, and how its rounds go by the clocks of devices.

    python benchmarks/million.py costs       # sums that are added, written, read and merged
    python benchmarks/million.py rounds      # rounds of 1,000 out of a million simulated devices

ResNet18 under NeFL-WD. Costs are processor time of one thread, medians, after the merged sums were
compared with those of one server. In the rounds nobody trains: clients are drawn, given submodels
and timed as in a run, and the round closes by the same rule.
"""

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import torch

from nefl import (
    Aggregate,
    ClientUpdate,
    Sums,
    TrainTask,
    extract,
    load_sums,
    make_family,
    save_sums,
)
from nefl.config import ClientsConfig, DeviceConfig, RunConfig, ServerConfig
from nefl.engines.tuning import tune_process
from nefl.models.images import SMALL_IMAGES
from nefl.nesting.profile import profile_family
from nefl.server.closing import Closed, simulated_closing
from nefl.server.cohort import CohortPlan, assign_submodels, by_tier, sample_cohort
from nefl.server.devices import Fleet
from nefl.server.ledger import open_ledger
from nefl.state import ServerState

CLIENTS, WANTED = 1_000_000, 1000
EXAMPLES, BATCH = 200, 32
DEVICES = (
    DeviceConfig("old phone", 8e7, 2e9, 2.5e5, share=5, fails=0.10),
    DeviceConfig("phone", 1.2e8, 1e10, 1e6, share=4, fails=0.08),
    DeviceConfig("laptop", 4e8, 3e10, 5e6, share=1, fails=0.05),
)
CLOSE_AFTER = 600.0
CASES = ((1.0, 2.0), (1.1, 2.0), (1.2, 2.0), (1.3, 1.0), (1.3, 2.0), (1.3, 4.0))
"""How many times as many are asked, and how long places are kept."""

FAMILY = make_family("resnet18", "nefl-wd")


def timed(work: Callable[[], object], repeats: int) -> float:
    """Return the median of a work's processor time in milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times)


def updates_of(state: ServerState, count: int) -> list[ClientUpdate]:
    """Return updates of all submodels in turn, the largest first."""
    return [
        ClientUpdate(
            TrainTask(1, client, 5 - client % 5),
            {
                name: tensor + torch.randn(tensor.shape).to(tensor.dtype)
                for name, tensor in extract(state, FAMILY, 5 - client % 5).items()
            },
            1,
        )
        for client in range(count)
    ]


def summed(state: ServerState, updates: list[ClientUpdate]) -> Aggregate:
    total = Aggregate(state, FAMILY)
    for update in updates:
        total.add(update)
    return total


def merged(state: ServerState, parts: list[Sums]) -> Aggregate:
    total = Aggregate(state, FAMILY)
    for part in parts:
        total.merge(part)
    return total


def check(state: ServerState, updates: list[ClientUpdate]) -> None:
    """See that two aggregators give what one server gives."""
    half = len(updates) // 2
    parts = [summed(state, some).sums() for some in (updates[:half], updates[half:])]
    found, expected = merged(state, parts).finish(), summed(state, updates).finish()
    for name, tensor in expected.shared.items():
        torch.testing.assert_close(found.shared[name], tensor, rtol=1e-5, atol=1e-6)


def costs(repeats: int) -> None:
    """Print what adding, passing on and merging takes."""
    tune_process(1)
    state = FAMILY.initial_state(0)
    updates = updates_of(state, 20)
    check(state, updates)
    adding = {}
    for submodel in range(1, 6):
        own = [update for update in updates if update.task.submodel == submodel]
        adding[submodel] = timed(adder(summed(state, own[:1]), own[1]), repeats)
    part = summed(state, updates).sums()
    tensors = [*part.shared.values(), *(t for own in part.own for t in own.values())]
    size = sum(tensor.nbytes for tensor in tensors)
    into = merged(state, [part])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.safetensors"
        writing = timed(lambda: save_sums(path, part, FAMILY), repeats)
        reading = timed(lambda: load_sums(path, FAMILY), repeats)
    merging = timed(lambda: into.merge(part), repeats)
    print(f"adding an update, ms by submodel: {_shown(adding)}")
    print(f"sums of one aggregator: {size / 1e6:.1f} MB; ms to write {writing:.0f}, ", end="")
    print(f"to read and check {reading:.0f}, to merge {merging:.0f}")
    drawing(repeats)


def adder(total: Aggregate, update: ClientUpdate) -> Callable[[], None]:
    """Return what adds an update again and again, each time as another client's."""
    numbers = count(1000)

    def add() -> None:
        total.add(replace(update, task=replace(update.task, client=next(numbers))))

    return add


def drawing(repeats: int) -> None:
    """Print what drawing a cohort takes, without and with a ledger of all clients."""
    plain = ClientsConfig(count=CLIENTS, per_round=WANTED, over_select=1.3)
    noted = ClientsConfig(
        count=CLIENTS, per_round=WANTED, over_select=1.3, pause=1, prefer="unheard"
    )
    ledger = open_ledger({}, noted)
    size = sum(tensor.nbytes for tensor in ledger.values())
    without = timed(lambda: sample_cohort(CohortPlan(plain, 5, 0), 3), repeats)
    with_it = timed(lambda: sample_cohort(CohortPlan(noted, 5, 0), 3, 0, ledger), repeats)
    print(f"drawing 1,300 of a million: {without:.1f} ms, with a ledger {with_it:.0f} ms", end="")
    print(f" ({size / 1e6:.0f} MB in memory and checkpoint)")


def _shown(numbers: dict[int, float]) -> str:
    return ", ".join(f"{k}: {n:.1f}" for k, n in numbers.items())


def rounds(number_of: int) -> None:
    """Print how long rounds take, and who is discarded, for each case."""
    profiles = profile_family(FAMILY, SMALL_IMAGES, BATCH)
    sizes = np.full(CLIENTS, EXAMPLES, np.int64)
    payload = [profile.payload_bytes for profile in profiles]
    print("asked  hold  round s  counted  GB down  GB up  discarded of those asked, by device")
    for over_select, hold in CASES:
        clients = ClientsConfig(
            count=CLIENTS,
            per_round=WANTED,
            over_select=over_select,
            hold=hold,
            close_after=CLOSE_AFTER,
            capability="devices",
            devices=DEVICES,
        )
        config = RunConfig(clients=clients, server=ServerConfig())
        fleet = Fleet(clients, profiles, 1, sizes, 0)
        plan = CohortPlan(clients, len(FAMILY), 0, fleet)
        seconds, down, up, trained = [], 0.0, 0.0, Counter[int]()
        told: dict[str, Counter[str]] = {}
        for number in range(1, number_of + 1):
            tasks = assign_submodels(sample_cohort(plan, number), plan, number)
            closed = simulated_closing(config, plan, tasks)
            assert closed is not None
            seconds.append(closed.seconds)
            down += sum(payload[task.submodel - 1] for task in tasks)
            up += sum(payload[task.submodel - 1] for task in closed.counted)
            trained.update(task.submodel for task in closed.counted)
            for tier, counts in discards(plan, tasks, closed).items():
                told.setdefault(tier, Counter()).update(counts)
        down, up = down / number_of, up / number_of
        shares = (
            f"{tier} {100 * n['discarded'] / n['asked']:.0f} %" for tier, n in sorted(told.items())
        )
        print(
            f"{over_select:5.1f}  {hold:4.1f}  {statistics.mean(seconds):7.0f}"
            f"  {trained.total() / number_of:7.0f}  {down / 1e9:7.1f}  {up / 1e9:5.1f}"
            f"  {', '.join(shares)}; updates by submodel "
            f"{', '.join(f'{k}: {trained[k] / number_of:.0f}' for k in sorted(trained))}"
        )


def discards(plan: CohortPlan, tasks: list[TrainTask], closed: Closed) -> dict[str, dict[str, int]]:
    """Return how many clients of each kind were asked and discarded."""
    late = [failure.task for failure in closed.left if failure.discarded]
    return by_tier(plan, asked=tasks, discarded=late)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("costs", "rounds"))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    if given.what == "costs":
        costs(given.repeats)
    else:
        rounds(given.rounds)


if __name__ == "__main__":
    main()
