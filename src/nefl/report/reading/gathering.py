"""Which runs are one: those that differ by the seed, or by what has no bearing on the result."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nefl.data.catalog import DATASETS
from nefl.measured import MeasuredBy
from nefl.report.reading.runs import Run
from nefl.report.reading.scores import with_arrow
from nefl.wording import counted

WITHOUT_EFFECT = (
    "seed",
    "about",
    "metrics",  # of which the primary one counts, see `effective`
    "engine.name",
    "engine.workers",
    "engine.devices",
    "engine.per_device",
    "engine.sums",
    "engine.deterministic",
    "engine.together",
    "engine.threads",
    "engine.flower.deadline",
    "engine.flower.patience",
    "engine.flower.poll",
    "published.",
    "data.root",
    "data.cache",
    "server.checkpoint_every",
    "server.keep",
    "server.evaluate_every",
)
"""Settings in which gathered runs may differ: what they measure is the same."""

METRIC = "metric"
"""What runs are measured by, which is treated as one of their settings."""
SECTIONS = (METRIC, "data.name", "partition", "model.name", "clients.count")
"""Settings that make sections where they differ; what else differs is told in the name."""

LONGEST = 30
"""Characters of a setting's value in a name."""


@dataclass(frozen=True)
class Gathered:
    """One way of training, over its seeds.

    Attributes:
        title: what tells its section from others, empty where there is one section.
        name: the method, and what else tells it from others of its section.
        settings: the settings that bear on the result, but for the seed.
        runs: those that count, by seed.
        others: those that do not, each with the reason: `left out of the means, ...`.
    """

    title: str
    name: str
    settings: Mapping[str, Any]
    runs: tuple[Run, ...]
    others: tuple[tuple[Run, str], ...]


def gather(runs: Sequence[Run]) -> list[Gathered]:
    """Gather runs that differ only by seed, in the order in which they are given."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(repr(sorted(effective(run).items())), []).append(run)
    settings = [effective(group[0]) for group in groups.values()]
    varied = varied_keys(settings)
    names = _names(settings, varied)
    return [
        Gathered(title_of(own, varied), name, own, *_choose(group))
        for group, own, name in zip(groups.values(), settings, names, strict=True)
    ]


def effective(run: Run) -> dict[str, Any]:
    """Return the settings that bear on a run's result, but for the seed."""
    settings = {k: v for k, v in run.settings.items() if not k.startswith(WITHOUT_EFFECT)}
    if ":" in str(settings.get("task", "")):  # a task of one's own has its own examples
        settings["data.name"] = settings["task"]
    if settings["data.name"] not in DATASETS:
        settings["data.root"] = run.settings.get("data.root")  # there the place is the data
    partition = {k: settings.pop(k) for k in list(settings) if k.startswith("partition.")}
    kind = partition["partition.kind"]
    detail = {
        "dirichlet": partition.get("partition.alpha"),
        "quantity": partition.get("partition.alpha"),
        "pathological": partition.get("partition.classes_per_client"),
        "tiers": partition.get("partition.tiers"),
        "list": partition.get("partition.file"),
    }.get(kind)
    settings["partition"] = kind if detail is None else f"{kind}({detail})"
    settings["partition.min_examples"] = partition.get("partition.min_examples")
    settings[METRIC] = with_arrow(run.metric)
    return settings


def leading_metric(runs: Sequence[Run]) -> MeasuredBy:
    """Return what a figure of some runs is drawn by: what most that were measured are."""
    found = Counter(run.metric for run in runs if run.evaluated)
    return found.most_common(1)[0][0] if found else runs[0].metric


def varied_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values are not the same everywhere, in their usual order."""
    keys = dict.fromkeys(key for own in settings for key in own)
    return [key for key in keys if len({repr(own.get(key)) for own in settings}) > 1]


def title_of(own: Mapping[str, Any], varied: Sequence[str]) -> str:
    """Return what tells a section from others, of the settings that are not the same everywhere."""
    return ", ".join(say_setting(key, own.get(key)) for key in SECTIONS if key in varied)


def say_setting(key: str, value: Any) -> str:
    """Return a setting as names have it."""
    if key == "clients.count":
        return counted(value, "client")
    if key in SECTIONS:
        return str(value)
    text = "none" if value is None else str(value)
    # A list of devices would push every figure out of the table; the note below it tells more.
    return f"{key}={text if len(text) <= LONGEST else text[: LONGEST - 1] + '…'}"


def line_names(runs: Sequence[Run]) -> dict[str, str]:
    """Return the line of a figure that each run belongs to, by the run's name.

    Runs that are one way of training share a line. One that does not count in its mean has a line
    of its own. Where no line has several runs, all are called as their runs are.
    """
    gathered = gather(runs)
    if all(len(each.runs) == 1 for each in gathered):
        return {run.name: run.name for run in runs}
    lines: dict[str, str] = {}
    for each in gathered:
        seeds = "1 seed" if len(each.runs) == 1 else f"{len(each.runs)} seeds"
        line = ", ".join(filter(None, (each.name, each.title, seeds)))
        lines |= {run.name: line for run in each.runs}
        lines |= {run.name: f"{run.name} alone" for run, _ in each.others}
    return {run.name: lines[run.name] for run in runs}


def _names(settings: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> list[str]:
    """Name by method; where that does not tell two of a section apart, by what does."""
    names: list[str] = []
    places: Counter[tuple[str, str]] = Counter()
    for own in settings:
        beside = [
            other
            for other in settings
            if title_of(other, varied) == title_of(own, varied)
            and other["model.method"] == own["model.method"]
        ]
        extra = [say_setting(k, own.get(k)) for k in varied_keys(beside) if k not in SECTIONS]
        name = " ".join([str(own["model.method"]), *extra])
        places[title_of(own, varied), name] += 1
        again = places[title_of(own, varied), name]  # values that differ only beyond what is shown
        names.append(name if again == 1 else f"{name} ({again})")
    return names


def _choose(group: Sequence[Run]) -> tuple[tuple[Run, ...], tuple[tuple[Run, str], ...]]:
    """Return one run a seed, finished ones where there are any; and the others, with reasons."""
    by_seed: dict[int, list[Run]] = {}
    for run in group:
        by_seed.setdefault(run.seed, []).append(run)
    kept: list[Run] = []
    others: list[tuple[Run, str]] = []
    for seed, same in sorted(by_seed.items()):
        chosen = max(same, key=lambda run: (run.status == "finished", run.last_round))
        kept.append(chosen)
        why = f"left out, {chosen.name} is the same run (seed {seed})"
        others += [(run, why) for run in same if run is not chosen]
    finished = [run for run in kept if run.status == "finished" and run.scores]
    if not finished:
        return tuple(kept), tuple(others)
    part = [run for run in kept if run not in finished]
    others += [(run, f"left out of the means, {run.progress}") for run in part]
    return tuple(finished), tuple(others)
