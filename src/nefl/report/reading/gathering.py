"""Which runs are one: those that differ by the seed, or by what has no bearing on the result."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nefl.data.catalog import DATASETS
from nefl.measured import MeasuredBy
from nefl.report.reading.meant import ALONE, FAMILY, MEMBER, OPTION, STEP, as_meant, member_alone
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
        settings: the settings that bear on the result, but for the seed, as they are meant.
        runs: those that count, by seed; where members trained alone are together, by member first.
        others: those that do not, each with the reason: `left out of the means, ...`.
    """

    title: str
    name: str
    settings: Mapping[str, Any]
    runs: tuple[Run, ...]
    others: tuple[tuple[Run, str], ...]

    @property
    def submodels(self) -> int:
        """How many submodels were measured."""
        return submodels_of(self.runs)


def submodels_of(runs: Sequence[Run]) -> int:
    """Return how many submodels were measured in runs that are one way of training."""
    if member_alone(runs[0].settings) is None:
        return len(runs[0].scores)
    return len({member_alone(run.settings) for run in runs if run.scores})


def gather(runs: Sequence[Run], *, members: bool = False) -> list[Gathered]:
    """Gather runs that differ only by seed, in the order in which they are given.

    Args:
        runs: the runs.
        members: whether members of one family that were trained alone are one way of training.
    """
    groups: dict[str, list[Run]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for run in runs:
        own = _of_family(effective(run)) if members else effective(run)
        key = repr(sorted(own.items()))
        groups.setdefault(key, []).append(run)
        settings.setdefault(key, own)
    varied = varied_keys(list(settings.values()))
    names = _names(list(settings.values()), varied)
    return [
        Gathered(title_of(settings[key], varied), name, settings[key], *_choose(group))
        for (key, group), name in zip(groups.items(), names, strict=True)
    ]


def _of_family(own: dict[str, Any]) -> dict[str, Any]:
    """Return settings of a member alone without its number, the family in the method's name."""
    if own["model.method"] != ALONE:
        return own
    rest = {key: value for key, value in own.items() if key not in (MEMBER, FAMILY)}
    return rest | {"model.method": f"{ALONE} ({own[FAMILY]})"}


def effective(run: Run) -> dict[str, Any]:
    """Return the settings that bear on a run's result, but for the seed, as they are meant."""
    meant = as_meant(run.settings)
    settings = {k: v for k, v in meant.items() if not k.startswith(WITHOUT_EFFECT)}
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


def short_keys(settings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return what names call each key: options by their name alone, the server's step as `step`.

    A key whose short name another one has too keeps its full name.
    """
    keys = dict.fromkeys(key for own in settings for key in own)
    short = {key: _short(key) for key in keys}
    held = Counter(short.values())
    return {key: name if held[name] == 1 else key for key, name in short.items()}


def _short(key: str) -> str:
    if key.startswith(STEP):
        return f"step.{key.removeprefix(STEP)}".removesuffix(".name")
    return key.removeprefix(OPTION)


def say_setting(key: str, value: Any, called: str = "") -> str:
    """Return a setting as names have it, under another name if one is given."""
    if key == "clients.count":
        return counted(value, "client")
    if key in SECTIONS:
        return str(value)
    text = "none" if value is None else str(value)
    # A list of devices would push every figure out of the table; the note below it tells more.
    return f"{called or key}={text if len(text) <= LONGEST else text[: LONGEST - 1] + '…'}"


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
    called = short_keys(settings)
    places: Counter[tuple[str, str]] = Counter()
    for own in settings:
        beside = [
            other
            for other in settings
            if title_of(other, varied) == title_of(own, varied)
            and other["model.method"] == own["model.method"]
        ]
        telling = [k for k in varied_keys(beside) if k in own and k not in SECTIONS]
        extra = [say_setting(k, own[k], called[k]) for k in telling]
        name = " ".join([str(own["model.method"]), *extra])
        places[title_of(own, varied), name] += 1
        again = places[title_of(own, varied), name]  # values that differ only beyond what is shown
        names.append(name if again == 1 else f"{name} ({again})")
    return names


def _choose(group: Sequence[Run]) -> tuple[tuple[Run, ...], tuple[tuple[Run, str], ...]]:
    """Return the runs that count and the others with reasons, of each member alone by itself."""
    by_member: dict[int, list[Run]] = {}
    for run in group:
        by_member.setdefault(member_alone(run.settings) or 0, []).append(run)
    chosen = [_choose_seeds(same) for _, same in sorted(by_member.items())]
    return (
        tuple(run for kept, _ in chosen for run in kept),
        tuple(other for _, others in chosen for other in others),
    )


def _choose_seeds(group: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, str]]]:
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
        return kept, others
    part = [run for run in kept if run not in finished]
    others += [(run, f"left out of the means, {run.progress}") for run in part]
    return finished, others
