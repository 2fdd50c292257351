"""What a reader must know to read a comparison rightly: what is not the same, what is left out."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from nefl.report.reading.gathering import (
    SECTIONS,
    WITHOUT_EFFECT,
    Gathered,
    say_setting,
    short_keys,
)
from nefl.report.reading.meant import as_meant, is_default, member_alone
from nefl.report.reading.published import ALIKE, PUBLISHED, Published
from nefl.report.reading.runs import Run
from nefl.report.reading.scores import with_arrow
from nefl.wording import counted

Value = TypeVar("Value", str, int, bool)


def left_out_of_means(each: Gathered) -> list[str]:
    """Say which runs do not count, and which count although they are not finished."""
    marked = [run for run in each.runs if run.status != "finished" or not run.scores]
    notes = [f"{run.name}: {why}" for run, why in each.others]
    return notes + [f"{run.name}: its row is marked *, {run.progress}" for run in marked]


def unlike_metrics(gathered: Sequence[Gathered]) -> list[str]:
    """Say that rows are measured by several metrics, so that nobody compares across them."""
    holders: dict[str, dict[str, None]] = {}
    for each in gathered:
        holders.setdefault(with_arrow(each.runs[0].metric), {})[each.name] = None
    if len(holders) < 2:
        return []
    told = "; ".join(f"{metric}: {', '.join(names)}" for metric, names in holders.items())
    return [f"not measured by the same, so in tables of their own ({told})"]


def unlike_settings(gathered: Sequence[Gathered], varied: Sequence[str]) -> list[str]:
    """Say in which further settings the rows differ, so that nobody takes them for equal.

    Rows for which a setting means nothing are not spoken of.
    """
    notes = []
    called = short_keys([each.settings for each in gathered])
    for key in varied:
        if key in (*SECTIONS, "model.method"):
            continue
        having = [each for each in gathered if key in each.settings]
        found = [each.settings[key] for each in having]
        holders = _holders(having, ["none" if value is None else str(value) for value in found])
        told = [f"{v} ({', '.join(who)})" for v, who in holders.items()]
        if len(having) == len(gathered):
            most = max(holders, key=lambda value: len(holders[value]))
            told = [each for each, v in zip(told, holders, strict=True) if v != most]
            notes.append(f"{key} is not the same for all: {'; '.join(told)}; {most} for the others")
        elif all(f" {called[key]}={e.settings[key]} " in f"{e.name} " for e in having):
            continue  # all that have it are named by it
        elif len(holders) > 1:
            notes.append(f"{key} is not the same for all: {'; '.join(told)}")
        elif not all(is_default(each.settings, key) for each in having):
            notes.append(f"{key} is {told[0]}")
    return notes


def unlike_families(gathered: Sequence[Gathered]) -> list[str]:
    """Say that families have other numbers of submodels, where they have."""
    measured = [each for each in gathered if each.submodels]
    sizes = _holders(measured, [each.submodels for each in measured])
    if len(sizes) < 2:
        return []
    told = "; ".join(f"{count}: {', '.join(who)}" for count, who in sorted(sizes.items()))
    return [f"numbers of submodels differ, so worst and average are not over the same ({told})"]


def without_family(gathered: Sequence[Gathered]) -> list[str]:
    """Say by what single models stand in columns of submodels where no family's run is there."""
    single = [each for each in gathered if member_alone(each.runs[0].settings) is None]
    if not single or any(each.submodels > 1 for each in single):
        return []
    note = (
        "no run of a family is among them: single models stand by their size, among each other or "
        "beside the nearest of the members alone, whatever their numbers in a family would be"
    )
    return [note]


def unlike_seeds(gathered: Sequence[Gathered]) -> list[str]:
    """Say which rows are of other seeds, where they are."""
    seeds = [
        ", ".join(sorted({str(run.settings["seed"]) for run in each.runs}, key=int))
        for each in gathered
    ]
    holders = _holders(gathered, seeds)
    if len(holders) < 2:
        return []
    told = "; ".join(f"{found}: {', '.join(who)}" for found, who in holders.items())
    return [f"not all rows are of the same seeds ({told})"]


def _holders(gathered: Sequence[Gathered], values: Sequence[Value]) -> dict[Value, list[str]]:
    """Return who has each value: by name, and with the section where rows of a name differ."""
    held: dict[str, set[Value]] = {}
    for each, value in zip(gathered, values, strict=True):
        held.setdefault(each.name, set()).add(value)
    holders: dict[Value, dict[str, None]] = {}
    for each, value in zip(gathered, values, strict=True):
        alone = len(held[each.name]) == 1
        name = each.name if alone or not each.title else f"{each.name} on {each.title}"
        holders.setdefault(value, {})[name] = None
    return {value: list(names) for value, names in holders.items()}


def unlike_evaluations(gathered: Sequence[Gathered]) -> list[str]:
    """Say that runs were not measured equally often, where they were not."""
    found = {str(run.settings["server.evaluate_every"]) for each in gathered for run in each.runs}
    if len(found) < 2:
        return []
    told = ", ".join(sorted(found, key=int))
    return [f"runs were evaluated every {told} rounds: what was measured less often looks slower"]


def not_as_published(name: str, run: Run, published: Published | None) -> list[str]:
    """Say in what a run is not what its published figures are for."""
    if published is None:
        return []
    own = as_meant(run.settings)
    told = [
        f"{key}={own.get(key)} instead of {value}"
        for key, value in published.settings.items()
        if not key.startswith((*WITHOUT_EFFECT, *ALIKE)) and value != own.get(key)
    ]
    return [f"{name} is not as published: {', '.join(told)}"] if told else []


def without_published(gathered: Sequence[Gathered]) -> list[str]:
    """Say which rows have no published figures because they are measured by something else."""
    holders = _holders(gathered, [each.runs[0].metric.name == PUBLISHED for each in gathered])
    if False not in holders:
        return []
    told = ", ".join(holders[False])
    return [f"published figures are of {PUBLISHED}; none stand beside {told}"]


def in_common(settings: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> str:
    """Return what all rows share, in a line."""
    first = settings[0]
    told = [
        say_setting(k, first.get(k))
        for k in ("model.name", "data.name", "partition")
        if k not in varied
    ]
    if not {"clients.count", "clients.per_round"} & set(varied):
        told.append(
            f"{first['clients.per_round']} of {counted(first['clients.count'], 'client')} a round"
        )
    if "rounds" not in varied:
        told.append(counted(first["rounds"], "round"))
    return ", ".join(told)
