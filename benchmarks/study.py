"""Run the study: every method, IID and label-skewed, several seeds, on a part of CIFAR-10.

    python benchmarks/study.py runs/study --data PATH/TO/cifar10

Each run is a plain `nefl train`; the command is printed before it starts. Finished runs are left
alone and interrupted ones go on from their checkpoint, so the script can be stopped and started
again. Runs side by side use the serial engine, one core each.
"""

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from nefl.recipes import recipe_names

RECIPE = "small-cifar10-resnet20_pooled"
METHODS = [
    name.removeprefix(f"{RECIPE}-")
    for name in recipe_names()
    if name.startswith(RECIPE) and not name.endswith("-dirichlet")
]


def commands(out: Path, data: Path, methods: list[str], seeds: int) -> list[tuple[Path, list[str]]]:
    """List every run's folder and command, one seed of everything before the next."""
    runs = []
    for seed, method, kind in product(range(seeds), methods, ("iid", "dirichlet")):
        folder = out / f"{method}-{kind}-s{seed}"
        recipe = f"{RECIPE}-{method}" + ("" if kind == "iid" else f"-{kind}")
        flags = ("--seed", str(seed), "--engine", "serial", "--set", f"data.root={data}")
        runs.append((folder, ["train", recipe, "--out", str(folder), *flags]))
    return runs


def run(folder: Path, command: list[str]) -> int:
    """Start a run, go on with it, or leave it as it is."""
    if (folder / "summary.json").exists():
        return 0
    if (folder / "config.json").exists():
        command = ["resume", str(folder)]
    print("nefl", *command, flush=True)
    with folder.with_suffix(".log").open("a") as log:
        done = subprocess.run([sys.executable, "-m", "nefl", *command], stdout=log, stderr=log)
    if done.returncode:
        print(f"{folder.name}: failed, see {log.name}", flush=True)
    return done.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out", type=Path, help="the folder of the runs' folders")
    parser.add_argument("--data", type=Path, required=True, help="CIFAR-10's folder")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=2, help="runs side by side")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    todo = commands(given.out, given.data.resolve(), given.methods, given.seeds)
    with ThreadPoolExecutor(given.slots) as pool:
        failed = sum(map(bool, pool.map(lambda job: run(*job), todo)))
    sys.exit(f"{failed} of {len(todo)} runs failed" if failed else 0)


if __name__ == "__main__":
    main()
