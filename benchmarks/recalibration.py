"""Whether measuring batch norms anew helps: every submodel of finished runs, before and after.

    python benchmarks/recalibration.py runs/study/scalefl-* runs/study/nefl-wd-*

Runs that differ only by seed make one row, with the mean over seeds. No weight is changed: only the
means and variances that norms use are taken anew, over the training data of all clients.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import nefl
from nefl.report.reading.folders import read_runs
from nefl.report.reading.runs import mean
from nefl.report.reading.scores import show_score
from nefl.report.tables.comparison import Row, compare


def over_seeds(scores: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of each submodel over seeds, then the average over submodels."""
    each = [mean(values) for values in zip(*scores, strict=True)]
    return [*each, mean(each)]


def show(row: Row, title: str) -> None:
    now, anew, metric = [], [], row.metric
    for run in row.runs:
        print(f"{run.name} …", file=sys.stderr, flush=True)
        now.append([found.values[metric.name] for found in nefl.evaluate(run.path)])
        found = nefl.evaluate(run.path, recalibrate=True)
        anew.append([each.values[metric.name] for each in found])
    before, after = over_seeds(now), over_seeds(anew)
    cells = (
        ", ".join(show_score(metric, value) for value in values[:-1]) for values in (before, after)
    )
    as_averaged, recalibrated = cells
    averages = f"{show_score(metric, before[-1])} | {show_score(metric, after[-1])}"
    name = f"`{row.name}`, {title}" if title else f"`{row.name}`"
    print(f"| {name} | {len(row.runs)} | {as_averaged} | {recalibrated} | {averages} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("runs", type=Path, nargs="+", help="finished runs, or folders of them")
    runs, refused = read_runs(parser.parse_args().runs)
    for reason in refused:
        print(f"left out: {reason}", file=sys.stderr)
    print("| method | seeds | as averaged | recalibrated | average | recalibrated |")
    print("|---|---:|---|---|---:|---:|")
    for section in compare([run for run in runs if run.status == "finished"]).sections:
        for row in section.rows:
            show(row, section.title)


if __name__ == "__main__":
    main()
