"""The sums of a dozen short runs, to compare before and after a change that may alter no result.

    python benchmarks/sums.py -o before.json
    python benchmarks/sums.py -o after.json --against before.json

Each run is two rounds on scikit-learn's digits, so that all methods, both kinds of model and the
ways of averaging have their part. It is made in this process and with two workers; the sums of
both must agree. With `--against` the exit code is 1 where a sum differs from the older one.
Sums hold for one machine and one version of torch.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from nefl import train

RUNS: dict[str, dict[str, Any]] = {
    "resnet8 nefl-w": {},
    "resnet20 nefl-d": {},
    "resnet20 nefl-wd": {"local": {"momentum": 0.9, "weight_decay": 1e-4}},
    "resnet20 nefl-do": {"partition": {"kind": "dirichlet"}},
    "resnet8 heterofl": {},
    "resnet8 fjord-od": {},
    "resnet20 depthfl-sd": {"server": {"weighting": "examples"}},
    "resnet20 scalefl": {},
    "resnet8 fedrolex": {},
    "resnet8 fedavg": {"server": {"recalibrate": True}},
    "resnet8 nefl-wd": {"server": {"average": "trimmed-mean", "norm_limit": 10}},
    "vit_tiny nefl-wd": {"local": {"optimizer": "adamw", "learning_rate": 1e-3}},
    "vit_tiny nefl-w": {"schedule": {"name": "cosine", "warmup_steps": 4}},
}
"""Model and method of each run, and what it has besides."""


def settings(run: str) -> dict[str, Any]:
    """Return the settings of a run, without its engine."""
    model, method = run.split()
    basis: dict[str, Any] = {
        "rounds": 2,
        "model": {"name": model, "method": method},
        "data": {"name": "digits", "train": 200, "test": 100},
        "clients": {"count": 10, "per_round": 5},
        "local": {"epochs": 1, "batch_size": 8},
        "server": {"evaluate_every": 2, "checkpoint_every": 2},
    }
    for table, values in RUNS[run].items():
        basis[table] = basis.get(table, {}) | values
    return basis


def sum_of(run: str, engine: dict[str, Any]) -> str:
    """Train a run and return the checksum of its final weights."""
    with tempfile.TemporaryDirectory() as folder:
        result = train(settings(run) | {"engine": engine | {"device": "cpu"}}, Path(folder) / "run")
        return str(result.summary["state_sha256"])


def measure(run: str) -> str:
    """Return the sum of a run, the same on both engines.

    Raises:
        SystemExit: if the engines disagree.
    """
    serial = sum_of(run, {"name": "serial"})
    workers = sum_of(run, {"name": "workers", "workers": 2})
    if serial != workers:
        sys.exit(f"{run}: {serial} in this process, {workers} with two workers")
    return serial


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--out", type=Path, help="write the sums here, as JSON")
    parser.add_argument("--against", type=Path, help="sums of an earlier time")
    given = parser.parse_args()
    before = json.loads(given.against.read_text())["sums"] if given.against else {}
    print(f"torch {torch.__version__}")
    sums, changed = {}, []
    for run in RUNS:
        sums[run] = measure(run)
        differs = run in before and sums[run] != before[run]
        changed += [run] * differs
        print(f"{run:20}  {sums[run]}{'  changed' if differs else ''}", flush=True)
    if given.out:
        given.out.write_text(json.dumps({"torch": torch.__version__, "sums": sums}, indent=2))
    if changed:
        sys.exit(f"changed: {', '.join(changed)}")


if __name__ == "__main__":
    main()
