"""What a page says of each run in words: how far it came, what it cost, how to repeat it."""

import json
import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nefl.artifacts.notes import CONFIG
from nefl.config import RunConfig
from nefl.config.reading import flatten
from nefl.report.figures.drawn_run import DrawnRun
from nefl.report.reading.costs import bytes_spent, macs_spent
from nefl.report.reading.runs import Run, mean
from nefl.report.reading.scores import show_score, with_arrow
from nefl.wording import counted, show_bytes, show_count, show_duration

MOST_FAILURES = 100
"""Failures listed one by one; more are only counted."""


def summary_of(each: DrawnRun) -> dict[str, Any]:
    """Return a run's row of the first table, and what stands at the end of the page."""
    run = each.run
    settings, scores, metric = run.settings, run.scores, run.metric
    macs = macs_spent(run, each.costs)
    return {
        "name": run.name,
        "status": run.status,
        "progress": run.progress,
        "model": f"{settings['model.name']}, {run.method}",
        "data": f"{settings['data.name']}, {_partition(run)}",
        "clients": f"{settings['clients.per_round']} of {settings['clients.count']}",
        "rounds": run.last_round,
        "seed": run.seed,
        "metric": with_arrow(metric),
        "worst": show_score(metric, scores[0] if scores else None),
        "average": show_score(metric, mean(scores)),
        "best": show_score(metric, metric.best(scores)),
        "sent": show_bytes(bytes_spent(run)),
        "macs": show_count(macs) if math.isfinite(macs) else "–",
        "time": show_duration(sum(entry.seconds for entry in run.rounds)),
        "command": f"nefl train {shlex.quote(str(run.path / CONFIG))} --out NEW-FOLDER",
        "versions": ", ".join(f"{k} {v}" for k, v in run.versions.items()) or "versions not noted",
        "changed": _changed(run),
        "config": json.dumps(dict(settings), indent=1, default=str),
    }


def _partition(run: Run) -> str:
    kind = run.settings["partition.kind"]
    return f"{kind}({run.settings['partition.alpha']})" if kind == "dirichlet" else str(kind)


def _changed(run: Run) -> str:
    defaults = flatten(RunConfig().to_dict())
    changed = {
        key: value
        for key, value in run.settings.items()
        if value != defaults.get(key) and key not in ("about", "data.root", "data.cache")
    }
    return ", ".join(f"{key} = {value}" for key, value in changed.items()) or "none"


def abouts_of(runs: Sequence[Run]) -> list[str]:
    """Return what the runs are about, each text once, with the runs that share it."""
    texts: dict[str, list[str]] = {}
    for run in runs:
        texts.setdefault(str(run.settings["about"]), []).append(run.name)
    texts.pop("", None)
    if len(texts) == 1 and len(runs) == len(next(iter(texts.values()))):
        return list(texts)
    return [f"{', '.join(names)}: {text}" for text, names in texts.items()]


def problems_of(runs: Sequence[Run]) -> list[str]:
    """Return what a reader must know before trusting the figures."""
    told = []
    for run in runs:
        if run.status == "empty":
            told.append(f"{run.name}: no round has been finished")
        elif run.status != "finished":
            why = f": {run.stopped}" if run.stopped else ""
            told.append(f"{run.name}: {run.progress}{why}")
        told += [f"{run.name}: {problem}" for problem in run.problems]
    return told


def failures_of(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], str]:
    """Return the last failures one by one, and a line on all of them."""
    listed = [
        (run.name, number, failure)
        for run in runs
        for number, failures in (
            *((entry.number, entry.failures) for entry in run.rounds),
            *((attempt.number, attempt.failures) for attempt in run.repeated),
        )
        for failure in failures
    ]
    found = [{"run": name, "round": number, **asdict(failure)} for name, number, failure in listed]
    repeated = [(run.name, attempt) for run in runs for attempt in run.repeated]
    line = f"{counted(len(found), 'update')} failed or refused"
    if len(found) > MOST_FAILURES:
        line += f"; the last {MOST_FAILURES} are listed"
    if repeated:
        name, last = repeated[-1]
        line += (
            f"; {counted(len(repeated), 'round')} did not count and had to be repeated, the last "
            f"of them round {last.number} of {name}: {last.why}"
        )
    return found[-MOST_FAILURES:], f"{line}.{_discards(runs)}"


def _discards(runs: Sequence[Run]) -> str:
    """Say how many updates had no place when their rounds closed, by submodel."""
    late = [failure.submodel for run in runs for entry in run.rounds for failure in entry.discarded]
    if not late:
        return ""
    each = (f"{n} of submodel {k}" for k, n in sorted(Counter(late).items()))
    return f" {counted(len(late), 'update')} came too late and were discarded: {', '.join(each)}."
