"""A picture of arms side by side from lines of results, drawn as `by-method` draws runs."""

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.study.results import Result, place
from nefl.measured import MeasuredBy
from nefl.report.figures.parts import score_channel
from nefl.report.figures.run_records import SCORE
from nefl.report.figures.studies import method_lines
from nefl.report.figures.vega import Figure
from nefl.report.reading.scores import score_axis


def picture(results: Iterable[Result], arms: Mapping[str, str], submodels: int = 5) -> Figure:
    """Draw arms, the best average above.

    Args:
        results: all that is known.
        arms: what is drawn, by the name it has there: its runs' folders without the seed,
            `capacity/within`, or `capacity/exclusive` for all members that were alone; several
            with a plus between them.
        submodels: how many a family has.

    Raises:
        SystemExit: naming an arm of which there is no run.
    """
    known = list(results)
    records: list[dict[str, Any]] = []
    for name, starts in arms.items():
        runs = [r for start in starts.split("+") for r in _runs(known, start)]
        records += _records(name, runs, submodels)
    averages = {r["method"]: r["average"] for r in records if "average" in r}
    lines = method_lines(
        sorted(averages, key=averages.__getitem__, reverse=True),
        score_channel(score_axis(MeasuredBy("accuracy", "up", percent=True))),
    )
    about = (
        "The test accuracy of each submodel and, as an upright stroke, their average. The bar is a "
        "standard deviation of the average over seeds."
    )
    return Figure("by-method", "The test accuracy by arm", about, lines, records)


def _runs(known: Iterable[Result], start: str) -> list[Result]:
    protocol, _, arm = start.rpartition("/")
    names = r"exclusive-\d+" if arm == "exclusive" else re.escape(arm)
    found = [r for r in known if r.protocol == protocol and re.fullmatch(names, r.arm)]
    if not found:
        raise SystemExit(f"{start}: there is no run of it")
    return found


def _records(name: str, runs: Sequence[Result], submodels: int) -> Iterator[dict[str, Any]]:
    """Yield an arm's average with its spread, then each submodel, in percent."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for k, accuracy in enumerate(run.accuracy):
            found.setdefault(place(run.arm, k, submodels) + 1, []).append(100 * accuracy)
    means = {number: statistics.mean(values) for number, values in sorted(found.items())}
    average = statistics.mean(means.values())
    by_seed: dict[int, list[float]] = {}
    for run in runs:
        by_seed.setdefault(run.seed, []).append(100 * run.average)
    each = [statistics.mean(values) for values in by_seed.values()]
    spread = statistics.stdev(each) if len(each) > 1 else 0.0
    ends = {"low": round(average - spread, 2), "high": round(average + spread, 2)}
    yield {"method": name, "average": round(average, 2)} | ends
    for number, value in means.items():
        yield {"method": name, "submodel": number, SCORE: round(value, 2)}
