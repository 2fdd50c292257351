"""Runs as counters and gauges in the format of Prometheus, read from their folders.

All of it comes from the log: what is counted goes on where it was after a server, or this program,
is started anew.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nefl.extras import need
from nefl.report.reading.log_lines import Failure
from nefl.report.reading.nodes import read_nodes
from nefl.report.reading.runs import Run

KIND = "text/plain; version=0.0.4; charset=utf-8"
REASONS = 20
"""How many reasons of failures are told apart; a label for each client would be too many."""


def exposition(runs: Sequence[Run]) -> bytes:
    """Return what a scraper reads of runs.

    Raises:
        ConfigError: if prometheus-client is not installed.
        OSError: if a log cannot be read.
    """
    client = need("prometheus_client", "report")
    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(_Collector(runs))
    text: bytes = client.generate_latest(registry)
    return text


class _Collector:
    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs

    def collect(self) -> Iterator[Any]:
        """Give all families of numbers."""
        core = need("prometheus_client.core", "report")
        counter, gauge = core.CounterMetricFamily, core.GaugeMetricFamily
        for kind, name, about, labels, rows in _families(self._runs):
            family = (counter if kind == "counter" else gauge)(name, about, labels=labels)
            for values, number in rows:
                if math.isfinite(number):
                    family.add_metric([str(value) for value in values], number)
            yield family


Rows = list[tuple[tuple[object, ...], float]]


def _families(runs: Sequence[Run]) -> Iterator[tuple[str, str, str, list[str], Rows]]:
    yield (
        "gauge",
        "nefl_running",
        "Whether the run is under way.",
        ["run"],
        [((r.name,), float(r.status == "running")) for r in runs],
    )
    yield (
        "gauge",
        "nefl_rounds_planned",
        "Rounds that the run is to have.",
        ["run"],
        [((r.name,), float(r.planned)) for r in runs],
    )
    yield (
        "counter",
        "nefl_rounds",
        "Finished rounds.",
        ["run"],
        [((r.name,), float(r.last_round)) for r in runs],
    )
    yield (
        "counter",
        "nefl_rounds_repeated",
        "Rounds that did not count.",
        ["run"],
        [((r.name,), float(len(r.repeated))) for r in runs],
    )
    yield (
        "counter",
        "nefl_updates",
        "Updates that counted.",
        ["run", "submodel"],
        [
            ((r.name, k), float(sum(e.trained.get(k, 0) for e in r.rounds)))
            for r in runs
            for k in sorted({k for e in r.rounds for k in e.trained})
        ],
    )
    yield (
        "counter",
        "nefl_failures",
        "Tasks without an update.",
        ["run", "reason"],
        [((r.name, reason), float(n)) for r in runs for reason, n in _reasons(_failures(r))],
    )
    yield (
        "counter",
        "nefl_discarded",
        "Updates that came too late.",
        ["run", "submodel"],
        [
            ((r.name, k), float(n))
            for r in runs
            for k, n in sorted(Counter(f.submodel for e in r.rounds for f in e.discarded).items())
        ],
    )
    yield (
        "counter",
        "nefl_bytes",
        "Bytes of weights sent.",
        ["run", "way"],
        [
            ((r.name, way), float(sum(getattr(e, f"bytes_{way}") for e in r.rounds)))
            for r in runs
            for way in ("down", "up")
        ],
    )
    yield (
        "counter",
        "nefl_round_seconds",
        "Time of all rounds.",
        ["run"],
        [((r.name,), sum(e.seconds for e in r.rounds)) for r in runs],
    )
    yield (
        "gauge",
        "nefl_last_round_seconds",
        "Time of the last round.",
        ["run"],
        [((r.name,), r.rounds[-1].seconds) for r in runs if r.rounds],
    )
    yield "gauge", "nefl_score", "The primary metric, as measured last.", [
        "run", "metric", "submodel",
    ], [
        ((r.name, r.metric.name, k), score)
        for r in runs
        for k, score in enumerate(r.scores, start=1)
    ]  # fmt: skip
    yield (
        "gauge",
        "nefl_nodes",
        "Nodes by their state.",
        ["run", "state"],
        [
            ((r.name, state), float(n))
            for r in runs
            for state, n in sorted(Counter(node.state for node in read_nodes(r.path)).items())
        ],
    )


def _failures(run: Run) -> Iterator[Failure]:
    for entry in run.rounds:
        yield from entry.failures
    for attempt in run.repeated:
        yield from attempt.failures


def _reasons(failures: Iterable[Failure]) -> list[tuple[str, int]]:
    """Count failures by reason: without names and numbers, and the rarest together."""
    counts = Counter(_plain(failure.reason) for failure in failures)
    common = counts.most_common(REASONS)
    others = counts.total() - sum(n for _, n in common)
    return [*common, *([("others", others)] if others else [])]


def _plain(reason: str) -> str:
    """Return a reason without who it was: what one label may stand for."""
    about = reason.partition(": ")[2] or reason
    return re.sub(r"[0-9][0-9.e+-]*", "#", about)[:80]
