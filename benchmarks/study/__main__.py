r"""Run the study of docs/study.md: families, models for everyone and members alone, several seeds.

    python -m benchmarks.study make runs/study --data PATH/TO/cifar10 [--protocols first-iid ...]
    python -m benchmarks.study gather runs/study -o benchmarks/study/results.csv
    python -m benchmarks.study tables benchmarks/study/results.csv [--protocols capacity ...]
    python -m benchmarks.study picture benchmarks/study/results.csv -o capacity.svg \
        --arms 'the family=capacity/nefl-wd' 'each alone=capacity/exclusive'

Each run is a plain `nefl train`; the command is printed before it starts. Finished runs are left
alone and interrupted ones go on from their checkpoint, so it can be stopped and started again; with
`--known` runs are not made whose results a file has. Runs side by side use the serial engine, one
core each. Server steps are tuned first, on a seed that does not count; what was chosen is noted
beside the runs, in `chosen.json`.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.study.picture import picture
from benchmarks.study.protocols import (
    PROTOCOLS,
    STEPS,
    TUNING_SEED,
    Arm,
    Protocol,
    settings_of,
)
from benchmarks.study.results import Result, by_arm, gather, goals, read, table
from nefl.report.figures.vega import draw


def run(folder: Path, command: Sequence[str]) -> None:
    """Start a run, go on with it, or leave it as it is."""
    if not (folder / "summary.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        going_on = (folder / "config.json").exists()
        words = ["resume", str(folder)] if going_on else [*command, "--out", str(folder)]
        print("nefl", *words, flush=True)
        with folder.with_suffix(".log").open("a") as log:
            done = subprocess.run([sys.executable, "-m", "nefl", *words], stdout=log, stderr=log)
        if done.returncode:
            print(f"{folder.name}: failed, see {log.name}", flush=True)


def average(folder: Path) -> float:
    """Return a run's average over its submodels; minus infinity for one that failed."""
    summary = folder / "summary.json"
    return float(json.loads(summary.read_text())["average"]) if summary.exists() else float("-inf")


class Study:
    """All runs of the study, as far as they are asked for."""

    def __init__(self, out: Path, data: Path, slots: int, known: Iterable[Result] = ()) -> None:
        self.out, self.data, self.pool = out, data, ThreadPoolExecutor(slots)
        self.known = {out / result.folder: result.average for result in known}
        self.notes = out / "chosen.json"
        self.chosen: dict[str, str] = (
            json.loads(self.notes.read_text()) if self.notes.exists() else {}
        )

    def best(self, question: str, runs: Mapping[str, tuple[Path, list[str]]]) -> str:
        """Make runs and return which is best, on average over its submodels."""
        if question not in self.chosen:
            names, jobs = list(runs), list(runs.values())
            self.make(jobs)
            found = [self.known.get(folder, average(folder)) for folder, _ in jobs]
            scores = dict(zip(names, found, strict=True))
            failed = [name for name, score in scores.items() if score == float("-inf")]
            if failed:
                raise SystemExit(
                    f"{question}: {', '.join(failed)} failed; see its log, start again"
                )
            self.chosen[question] = max(scores, key=scores.__getitem__)
            self.notes.write_text(json.dumps(self.chosen, indent=2) + "\n")
            print(f"{question}: {self.chosen[question]} of {scores}", flush=True)
        return self.chosen[question]

    def step(self, name: str, protocol: Protocol, arm: Arm) -> str:
        """Return an arm's server step in a protocol, tuned on its own."""
        if arm.step:
            return arm.step
        if arm.tuned_as:
            other = next(each for each in protocol.all_arms() if each.name == arm.tuned_as)
            return self.step(name, protocol, other)
        folder = self.out / "tuning" / name
        return self.best(
            f"{name}/{arm.name}",
            {
                step: (
                    folder / f"{arm.name}-{step}",
                    settings_of(protocol, arm, step, TUNING_SEED, self.data),
                )
                for step in STEPS
            },
        )

    def protocol(self, name: str, seeds: int) -> None:
        """Tune the arms of a protocol, then make its runs, one seed of everything at a time."""
        protocol = PROTOCOLS[name]
        arms = protocol.all_arms()
        tuned_on = protocol.tuned_on or name
        there = PROTOCOLS[tuned_on]
        tuned = {arm.name: arm for arm in there.all_arms()}
        steps = {arm.name: self.step(tuned_on, there, tuned.get(arm.name, arm)) for arm in arms}
        jobs = [
            (
                self.out / name / f"{arm.name}-s{seed}",
                settings_of(protocol, arm, steps[arm.name], seed, self.data),
            )
            for seed in range(seeds)
            for arm in arms
            if seed < arm.seeds
        ]
        self.make(jobs)

    def make(self, jobs: Iterable[tuple[Path, list[str]]]) -> None:
        """Make runs whose results are not known, side by side."""
        asked = [job for job in jobs if job[0] not in self.known]
        list(self.pool.map(lambda job: run(*job), asked))


def show(file: Path, protocols: Sequence[str], ours: str) -> None:
    """Print the tables of protocols, of all that a file has if none are named.

    Args:
        file: the results.
        protocols: which ones.
        ours: the arm that is compared with the others by pairs of the same seed.
    """
    results = read(file)
    for protocol in protocols or sorted({result.protocol for result in results}):
        arms = by_arm(results, protocol)
        if not arms:
            raise SystemExit(f"{file}: has no run of {protocol}")
        known = PROTOCOLS.get(protocol)
        if known is not None and known.divides:  # what the same clients make of a family
            others = by_arm(results, known.divides)
            arms = {arm: runs for arm, runs in others.items() if runs[0].accuracy[1:]} | arms
        if known is not None and known.varies:
            arms = by_arm(results, known.varies) | arms
        print(f"\n`{protocol}`\n", *table(arms), "", *goals(arms, ours), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="make the runs")
    making.add_argument("out", type=Path, help="the folder of the runs' folders")
    making.add_argument("--data", type=Path, required=True, help="CIFAR-10's folder")
    making.add_argument("--protocols", nargs="+", default=list(PROTOCOLS), choices=PROTOCOLS)
    making.add_argument("--seeds", type=int, default=3)
    making.add_argument("--known", type=Path, help="results that need not be made")
    making.add_argument("--slots", type=int, default=2, help="runs side by side")
    gathering = commands.add_parser("gather", help="add finished runs to a file of results")
    gathering.add_argument("runs", type=Path)
    gathering.add_argument("-o", "--out", type=Path, required=True)
    showing = commands.add_parser("tables", help="print tables as Markdown")
    showing.add_argument("file", type=Path)
    showing.add_argument("--protocols", nargs="+", default=[])
    showing.add_argument("--ours", default="within", help="the arm that is set against the others")
    drawing = commands.add_parser("picture", help="draw arms side by side")
    drawing.add_argument("file", type=Path)
    drawing.add_argument("-o", "--out", type=Path, required=True, help=".svg, .png or .pdf")
    drawing.add_argument("--arms", nargs="+", required=True, metavar="NAME=PROTOCOL/ARM")
    given = parser.parse_args()
    if given.command == "gather":
        print(f"{given.out}: {gather(given.runs, given.out)} runs")
    elif given.command == "picture":
        nameless = [arm for arm in given.arms if not arm.rpartition("=")[0]]
        if nameless:
            parser.error(f"--arms {nameless[0]!r}: give NAME=PROTOCOL/ARM")
        arms = dict(arm.rpartition("=")[::2] for arm in given.arms)
        given.out.write_bytes(draw(picture(read(given.file), arms), given.out))
    elif given.command == "tables":
        show(given.file, given.protocols, given.ours)
    else:
        given.out.mkdir(parents=True, exist_ok=True)
        known = read(given.known) if given.known else ()
        study = Study(given.out, given.data.resolve(), given.slots, known)
        for name in given.protocols:
            study.protocol(name, given.seeds)


if __name__ == "__main__":
    main()
