"""Averaging ten ResNet18 updates of mixed submodels, against adding the same bytes bare.

    python benchmarks/averaging.py [--repeats 15] [--threads 1]

The answer is checked before anything is timed. Rows: `add_` over flat buffers of the same sizes,
which is the least that any averaging must do; the sums and their division; the same with every
update checked for names, shapes, dtypes and finite values, which reads all bytes once more; median
and trimmed mean, checked too. With one thread, times are of the processor, so that other work on
the machine counts little. Memory is what a process takes beyond updates and state, at its peak.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch

from nefl import Aggregate, ClientUpdate, TrainTask, extract, make_family
from nefl.config import ServerConfig
from nefl.engines.tuning import tune_process
from nefl.server.averages import make_average

SUBMODELS = (5, 5, 4, 4, 3, 3, 2, 2, 1, 1)  # largest first, as a round runs them


def timed(work: Callable[[], object], threads: int) -> float:
    clock = time.process_time if threads == 1 else time.perf_counter
    start = clock()
    work()
    return clock() - start


def peak_megabytes(work: Callable[[], object]) -> float:
    """Return the memory that a work takes at its peak, measured in a process of its own."""
    reading, writing = os.pipe()
    if not os.fork():
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
        before = _memory("VmRSS:")
        work()
        os.write(writing, str(_memory("VmHWM:") - before).encode())
        os._exit(0)
    os.wait()
    return float(os.read(reading, 40))


def _memory(what: str) -> float:
    return int(Path("/proc/self/status").read_text().split(what)[1].split()[0]) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    repeats = given.repeats
    tune_process(1)  # a process that has begun threads cannot be forked
    family = make_family("resnet18", "nefl-wd")
    state = family.initial_state(0)
    updates = [
        ClientUpdate(
            TrainTask(1, client, k),
            {n: t + torch.randn(t.shape).to(t.dtype) for n, t in extract(state, family, k).items()},
            1,
        )
        for client, k in enumerate(SUBMODELS)
    ]
    flat = [
        torch.cat([t.flatten() for t in u.trained.values() if t.is_floating_point()])
        for u in updates
    ]
    sums = torch.zeros(max(f.numel() for f in flat))

    def bare() -> None:
        for values in flat:
            sums[: values.numel()].add_(values)

    def checked() -> torch.Tensor:
        total = Aggregate(state, family)
        for update in updates:
            total.add(update)
        return total.finish().shared["layer4.0.conv1.weight"]

    def unchecked() -> torch.Tensor:
        with patch("nefl.server.aggregate.check_update"):
            return checked()

    def voted(server: ServerConfig) -> Callable[[], torch.Tensor]:
        def vote() -> torch.Tensor:
            total = make_average(state, family, server)
            for update in updates:
                total.add(update)
            return total.finish().shared["layer4.0.conv1.weight"]

        return vote

    median, trimmed = (voted(ServerConfig(average=name)) for name in ("median", "trimmed-mean"))
    works = {
        "bare add_": bare,
        "sums and division": unchecked,
        "with checks": checked,
        "median": median,
        "trimmed mean": trimmed,
    }
    # Before anything has run: the process then has no freed memory to use again.
    memory = {name: peak_megabytes(work) for name, work in works.items()}
    tune_process(given.threads)  # as the server of a run does
    corners = [u.trained["layer4.0.conv1.weight"][:299, :150].double() for u in updates]
    torch.testing.assert_close(
        checked()[:299, :150].double(), torch.stack(corners).mean(0), rtol=1e-5, atol=1e-6
    )
    ordered = torch.stack(corners).sort(dim=0).values
    torch.testing.assert_close(
        median()[:299, :150].double(), ordered[4:6].mean(0), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(
        trimmed()[:299, :150].double(), ordered[2:-2].mean(0), rtol=1e-6, atol=1e-6
    )
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):  # interleaved, so that noise falls on all alike
        for name, work in works.items():
            times[name].append(timed(work, given.threads))
    megabytes = sum(f.nbytes for f in flat) / 1e6
    print(f"{megabytes:.0f} MB in {len(updates)} updates, {torch.get_num_threads()} threads")
    for name, seconds in times.items():
        bare_ratio, mean_ratio = (
            statistics.median(s / b for s, b in zip(seconds, times[base], strict=True))
            for base in ("bare add_", "with checks")
        )
        print(
            f"{name:18} {statistics.median(seconds) * 1e3:7.1f} ms  {bare_ratio:.2f} of bare  "
            f"{mean_ratio:.2f} of the mean  {memory[name]:5.0f} MB"
        )


if __name__ == "__main__":
    main()
