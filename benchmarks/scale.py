"""What a large population and a large cohort cost: time and memory of server and workers.

    python benchmarks/scale.py [--workers 2] [--case NUMBER]

A tiny model on synthetic images of 8×8, 200,000 of them or one for each client. Each row is a
process of its own, so that its peak memory is its own too. The server's memory must not grow with
the cohort. Processor time is the server's alone: what it does for a client besides waiting.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from nefl.config.reading import config_from
from nefl.engines.workers import WorkersEngine
from nefl.rounds import run_round
from nefl.running.assembly import assemble
from nefl.state import TrainTask

CASES = [
    (100, 10),
    (10_000, 10),
    (100_000, 10),
    (100_000, 100),
    (100_000, 1000),
    (100_000, 10_000),
    (1_000_000, 1000),
]
"""Clients in all, and in a round."""


def peak_megabytes(pid: str) -> float:
    """Return the largest resident memory that a process has had, and of that its own part."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def own_megabytes(pid: str) -> float:
    """Return the memory that a process shares with no other."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(rollup.split("Private_Dirty:")[1].split()[0]) / 1024


def measure(population: int, cohort: int, workers: int) -> dict[str, float]:
    config = config_from(
        {
            "model": {"name": "resnet8", "method": "nefl-w"},
            "data": {
                "name": "synthetic",
                "options": {"shape": [1, 8, 8], "train": max(200_000, population), "test": 1000},
            },
            "clients": {"count": population, "per_round": cohort},
            "local": {"epochs": 1, "batch_size": 2},
            "engine": {"name": "workers", "workers": workers, "device": "cpu"},
        }
    )
    started = time.perf_counter()
    setting = assemble(config)
    # Two examples for each client whatever the population, so that rounds compare.
    offsets = setting.partition.offsets[0] + 2 * np.arange(population + 1)
    indices = np.resize(setting.partition.indices, 2 * population)
    partition = type(setting.partition)(indices, offsets)
    path = Path(f"scale-{population}-{cohort}.safetensors")
    partition.save(path)
    prepared = time.perf_counter() - started
    engine = setting.engine(path)
    assert isinstance(engine, WorkersEngine)
    try:
        state = setting.family.initial_state(0)
        plan = setting.plan
        list(engine.train(state, [TrainTask(1, c, 1 + c % 5) for c in range(20)]))  # warm
        started, worked = time.perf_counter(), time.process_time()
        state, report = run_round(state, plan, engine)
        seconds, worked = time.perf_counter() - started, time.process_time() - worked
        assert not report.failures
        return {
            "prepare_seconds": prepared,
            "round_seconds": seconds,
            "milliseconds_per_client": 1e3 * seconds / cohort,
            "server_milliseconds": 1e3 * worked / cohort,
            "server_peak_mb": peak_megabytes("self"),
            "server_own_mb": own_megabytes("self"),
            "worker_own_mb": max(own_megabytes(str(pid)) for pid in engine.pids),
        }
    finally:
        engine.close()
        path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--case", type=int)
    given = parser.parse_args()
    if given.case is not None:
        population, cohort = CASES[given.case]
        print(json.dumps(measure(population, cohort, given.workers)))
        return
    print(
        "population  cohort  assemble s  round s  ms/client  server ms  server MB (own)  worker MB"
    )
    for number, (population, cohort) in enumerate(CASES):
        command = [sys.executable, __file__, "--case", str(number)]
        command += ["--workers", str(given.workers)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        row = json.loads(output.strip().splitlines()[-1])
        print(
            f"{population:10d}  {cohort:6d}  {row['prepare_seconds']:9.2f}"
            f"  {row['round_seconds']:7.2f}  {row['milliseconds_per_client']:9.2f}"
            f"  {row['server_milliseconds']:9.2f}"
            f"  {row['server_peak_mb']:9.0f} ({row['server_own_mb']:.0f})"
            f"  {row['worker_own_mb']:9.0f}"
        )


if __name__ == "__main__":
    main()
