"""`nefl train --dry-run`: what a run will cost, without starting it."""

from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from nefl.artifacts.notes import to_json
from nefl.cli.progress import show_duration
from nefl.cli.terminal import console_for_tables, say
from nefl.config import RunConfig
from nefl.estimate import RunCost, estimate_run
from nefl.wording import counted, show_bytes, show_count

_DAY = 86_400


def show_cost(config: RunConfig, recipe: str, *, as_json: bool) -> None:
    """Check a run and print what it will cost.

    Raises:
        NeflError: if the run could never start as it is.
    """
    cost = estimate_run(config)
    if as_json:
        say(to_json(cost_report(cost, recipe), indent=2))
    else:
        _show(cost, recipe)


def cost_report(cost: RunCost, recipe: str) -> dict[str, Any]:
    """Return the cost of a run as plain values."""
    report = asdict(cost) | {"recipe": recipe, "config": cost.config.to_dict()}
    report["submodels"] = [
        each["profile"] | {key: value for key, value in each.items() if key != "profile"}
        for each in report["submodels"]
    ]
    fewest, mean, most = cost.examples
    report["examples"] = {"fewest": fewest, "mean": mean, "most": most}
    return report


def _show(cost: RunCost, recipe: str) -> None:
    console = console_for_tables()
    console.print(_submodel_table(cost, recipe))
    for name, value in _lines(cost):
        console.print(Text(f"{name:>16}  {value}"), soft_wrap=True)
    for note in cost.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def _submodel_table(cost: RunCost, recipe: str) -> Table:
    config = cost.config
    title = (
        f"{recipe}: {config.model.name} {config.model.method} on {config.data.name} "
        f"({config.partition.kind}), {counted(config.rounds, 'round')}"
    )
    caption = f"submodels from {cost.family}; ~ marks a time that follows from another's by MACs"
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD)
    costs = ("params", "MACs", "memory", "down", "up")
    for heading in ("#", "γ", *costs, "trained by", "a step here"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in cost.submodels:
        row = each.profile
        table.add_row(
            str(row.index),
            f"{row.gamma:.2f}",
            show_count(row.params),
            show_count(row.macs_total),
            show_bytes(row.train_memory_bytes),
            show_bytes(row.down_bytes),
            show_bytes(row.up_bytes),
            f"{each.share:.0%}",
            _step(each.step_seconds, measured=each.measured),
        )
    return table


def _step(seconds: float | None, *, measured: bool) -> str:
    if seconds is None:
        return ""
    shown = f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
    return shown if measured else f"~{shown}"


def _lines(cost: RunCost) -> list[tuple[str, str]]:
    fewest, mean, most = cost.examples
    processes = counted(cost.workers, "worker") if cost.workers else "one process"
    cohort = f"{cost.tasks:.1f} of {cost.config.clients.count} a round"
    sent = f"{show_bytes(cost.round_bytes)} a round, {show_bytes(cost.total_bytes)} in all"
    lines = [
        ("clients", f"{cohort}, {fewest} to {most} examples each, {mean:.0f} on average"),
        ("coverage", f"every shared element is in {cost.min_coverage} of the submodels or more"),
        ("client memory", f"{show_bytes(cost.client_memory)} for the largest submodel"),
        ("server memory", f"{show_bytes(cost.server_memory)} of weights while a round is averaged"),
        ("memory here", f"{show_bytes(cost.memory_here)} with {processes}, data and code aside"),
        ("traffic", f"{sent}, down and up together"),
        *([("members within", cost.within)] if cost.within else []),
        ("work", f"{show_work(cost.total_macs)} of local training"),
        ("time here", _time(cost.seconds, processes)),
    ]
    return lines + _of_texts(cost)


def _of_texts(cost: RunCost) -> list[tuple[str, str]]:
    """Return what runs on texts or on a frozen base have to say besides."""
    lines, given = [], max(each.profile.frozen for each in cost.submodels)
    if given:
        lines.append(("frozen base", f"{show_count(given)} weights on every machine, never sent"))
    rates = [
        f"{cost.tokens * cost.config.local.batch_size / each.step_seconds:.0f}"
        for each in cost.submodels
        if each.step_seconds
    ]
    if cost.tokens and rates:
        lines.append(("training here", f"{', '.join(rates)} tokens a second, smallest first"))
    return lines


def _time(seconds: float | None, processes: str) -> str:
    if seconds is None:
        return "not measured"
    shown = f"{seconds / _DAY:.1f} days" if seconds > 2 * _DAY else show_duration(seconds)
    return f"about {shown} with {processes}, if the machine stays as busy as it is now"


def show_work(macs: float) -> str:
    """Write a number of multiply-accumulates for people, as in 3.28 PMACs."""
    for unit, size in (("E", 1e18), ("P", 1e15), ("T", 1e12)):
        if macs >= size:
            return f"{macs / size:.2f} {unit}MACs"
    return f"{macs / 1e9:.2f} GMACs"
