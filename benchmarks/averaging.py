"""Averaging ten ResNet18 updates of mixed submodels, against adding the same bytes bare.

    python benchmarks/averaging.py [--repeats 15] [--threads 1]

The answer is checked before anything is timed. Rows: `add_` over flat buffers of the same sizes,
which is the least that any averaging must do; the sums and their division; and the same with every
update checked for names, shapes, dtypes and finite values, which reads all bytes once more.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from unittest.mock import patch

import torch

from nefl import Aggregate, ClientUpdate, TrainTask, extract, make_family
from nefl.engines.tuning import tune_process

SUBMODELS = (5, 5, 4, 4, 3, 3, 2, 2, 1, 1)  # largest first, as a round runs them


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    repeats = given.repeats
    tune_process(given.threads)  # as the server of a run does
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

    corners = [u.trained["layer4.0.conv1.weight"][:299, :150].double() for u in updates]
    torch.testing.assert_close(
        checked()[:299, :150].double(), torch.stack(corners).mean(0), rtol=1e-5, atol=1e-6
    )
    works = {"bare add_": bare, "sums and division": unchecked, "with checks": checked}
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):  # interleaved, so that noise falls on all alike
        for name, work in works.items():
            times[name].append(timed(work))
    megabytes = sum(f.nbytes for f in flat) / 1e6
    base = statistics.median(times["bare add_"])
    print(f"{megabytes:.0f} MB in {len(updates)} updates, {torch.get_num_threads()} threads")
    for name, seconds in times.items():
        ratio = statistics.median(s / b for s, b in zip(seconds, times["bare add_"], strict=True))
        print(f"{name:18} {statistics.median(seconds) * 1e3:7.1f} ms  {ratio:.2f} of bare")
    assert base > 0


if __name__ == "__main__":
    main()
