"""`nefl design`: a family of submodels for a fleet of devices."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from nefl.artifacts.notes import to_json
from nefl.cli.progress import ProgressObserver, ScoredLines
from nefl.cli.terminal import Terminal, console_for_tables, say
from nefl.cli.train import DEFAULT_RECIPE, goes_on_later
from nefl.cli.user_files import check_output, write_output
from nefl.config import RunConfig
from nefl.config.reading import config_from, parse_setting, with_settings
from nefl.errors import ConfigError
from nefl.fleet.evidence import TRIES, TrainedScore
from nefl.fleet.explaining import show_amount
from nefl.fleet.fitting import COVERAGE, FittedFamily, Placement, fit_family
from nefl.fleet.kinds import LATENCY, MEMORY, RUN_MEMORY, TIME, read_fleet
from nefl.recipes import recipe_values
from nefl.recipes.writing import to_toml
from nefl.report.figures.family import family_figure
from nefl.report.figures.vega import check_format, draw
from nefl.wording import counted, show_bytes, show_count


def design(
    model: Annotated[str, typer.Argument(help="resnet20, …, or package.module:function.")],
    devices: Annotated[Path, typer.Option(help="The fleet: a TOML file of [[devices]].")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the recipe that trains the family.")
    ] = None,
    recipe: Annotated[
        str, typer.Option(help="The run that it is for: a recipe's name, or a file.")
    ] = DEFAULT_RECIPE,
    data: Annotated[str | None, typer.Option(help="Its data set, if another.")] = None,
    task: Annotated[str | None, typer.Option(help="What is learned, if another.")] = None,
    method: Annotated[str | None, typer.Option(help="Its method, if another.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting, as in local.epochs=1; may be repeated."),
    ] = None,
    members: Annotated[int, typer.Option(help="How many members there may be.")] = 5,
    coverage: Annotated[
        float, typer.Option(help="Share of the population that must be able to train each part.")
    ] = COVERAGE,
    score: Annotated[
        Literal["size", "trained"],
        typer.Option(help="Which of two members is better: by size, or cut out of a warm-up."),
    ] = "size",
    warm_up: Annotated[
        Path | None,
        typer.Option(help="With --score trained, the folder of the warm-up, made or taken."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of the warm-up; a fifth of the recipe's if left out.")
    ] = None,
    tries: Annotated[
        int | None, typer.Option(help=f"Members that are scored after it; {TRIES} if left out.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw the family: .svg, .png, .pdf or .json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Find the submodels for your devices: each the best member that it can train and run."""
    fleet = read_fleet(devices)
    flags = {"model.name": model, "data.name": data, "task": task, "model.method": method}
    given = dict(parse_setting(text) for text in settings or [])
    for key in ("model.members", "model.ratios"):
        if key in given:
            raise ConfigError(f"--set {key}: the design decides on that; leave it out")
    given |= {key: value for key, value in flags.items() if value is not None}
    values = recipe_values(recipe)
    values["model"] = {
        key: value
        for key, value in values.get("model", {}).items()
        if key not in ("members", "ratios")
    }
    config = config_from(with_settings(values, given), recipe)
    evidence = _evidence(config, score, warm_up, rounds, tries, out)
    for path in (out, figure):
        if path is not None:  # not only after a warm-up
            check_output(path)
    if figure is not None:
        check_format(figure)
    with goes_on_later(), evidence as scored:
        found = fit_family(config, fleet, members=members, coverage=coverage, score=scored)
    if out is not None:
        write_output(out, recipe_text(found, devices))
    if figure is not None:
        title = f"{model} for {devices.stem}"
        write_output(figure, draw(family_figure(found.family, found.profiles, title), figure))
    if as_json:
        say(to_json(report_of(found), indent=2))
    else:
        _show(found, model, out)


@contextmanager
def _evidence(
    config: RunConfig,
    score: str,
    warm_up: Path | None,
    rounds: int | None,
    tries: int | None,
    out: Path | None,
) -> Iterator[TrainedScore | None]:
    """Return the score by a warm-up, if that is asked for."""
    if score == "size":
        flags = {"--warm-up": warm_up, "--rounds": rounds, "--tries": tries}
        given = [flag for flag, value in flags.items() if value is not None]
        if given:
            raise ConfigError(f"{' and '.join(given)}: without --score trained nothing is trained")
        yield None
        return
    tries = TRIES if tries is None else tries
    if tries < FEWEST:
        raise ConfigError(f"--tries {tries}: give {FEWEST} or more, or nothing can be told")
    if warm_up is None and out is None:
        raise ConfigError("--score trained: say with --warm-up in which folder to train")
    folder = warm_up or cast("Path", out).with_suffix(".warm-up")
    length = rounds if rounds is not None else max(1, config.rounds // 5)
    console = Terminal(stderr=True, soft_wrap=True)
    observer = ProgressObserver(length, console)
    lines = ScoredLines(console)

    def scored(done: int, total: int) -> None:
        observer.close()
        lines(done, total)

    try:
        yield TrainedScore(config, folder, length, tries, observers=(observer,), progress=scored)
    finally:
        observer.close()


def recipe_text(found: FittedFamily, devices: Path) -> str:
    """Return the recipe that trains a designed family, with the reasons above it."""
    lines = [f"A family for the devices of {devices.name}:"]
    lines += [
        f"{each.name} ({each.share:.0%}): member {each.member}, {each.why}"
        for each in found.placements
    ]
    comments = "".join(f"# {' '.join(line.split())}\n" for line in lines)
    return f"{comments}\n{to_toml(found.config)}"


def report_of(found: FittedFamily) -> dict[str, Any]:
    """Return a designed family as plain values."""
    return {
        "family": [
            {"described": what, "score": score, **asdict(profile)}
            for what, score, profile in zip(
                found.described, found.scores, found.profiles, strict=True
            )
        ],
        "devices": [asdict(each) for each in found.placements],
        "coverage": found.coverage,
        "config": found.config.to_dict(),
        "notes": list(found.notes),
    }


def _show(found: FittedFamily, model: str, out: Path | None) -> None:
    console = console_for_tables()
    console.print(_members_table(found, model))
    console.print(_devices_table(found))
    for each in found.placements:
        console.print(Text(f"{each.name}: member {each.member}; {each.why}"), soft_wrap=True)
    console.print(
        Text(
            f"every part of the model is trained by {found.coverage:.0%} of the population or more"
        ),
        soft_wrap=True,
    )
    for note in found.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)
    if out is not None:
        console.print(Text(f"train it with: nefl train {out}"), soft_wrap=True)


def _members_table(found: FittedFamily, model: str) -> Table:
    config = found.config
    title = (
        f"{model} {config.model.method} on {config.data.name}: "
        f"{counted(len(found.profiles), 'member')}"
    )
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    headings = ("#", "member", "γ", "params", "MACs", "memory", "sent", "score", "for")
    for heading in headings:
        left = heading in ("member", "for")
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading != "for")
    rows = zip(found.profiles, found.described, found.scores, strict=True)
    for profile, described, score in rows:
        mine = [each for each in found.placements if each.member == profile.index]
        table.add_row(
            str(profile.index),
            described,
            f"{profile.gamma:.2f}",
            show_count(profile.params),
            show_count(profile.macs_total),
            show_bytes(profile.train_memory_bytes),
            show_bytes(profile.payload_bytes),
            f"{score:.3f}",
            ", ".join(each.name for each in mine),
        )
    return table


def _devices_table(found: FittedFamily) -> Table:
    table = Table(
        caption="what a member takes, of what the device has",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading in ("device", "share", "member", *BUDGETS):
        table.add_column(heading, justify="left" if heading == "device" else "right", no_wrap=True)
    for each in found.placements:
        table.add_row(
            each.name,
            f"{each.share:.0%}",
            str(each.member),
            *(_of_budget(each, budget) for budget in BUDGETS),
        )
    return table


FEWEST = 4
"""Fewer scored members than this say nothing of the others."""

BUDGETS = (MEMORY, TIME, RUN_MEMORY, LATENCY)


def _of_budget(placement: Placement, budget: str) -> str:
    if budget not in placement.limits:
        return ""
    used, limit = placement.uses[budget], placement.limits[budget]
    return f"{show_amount(budget, used)} of {show_amount(budget, limit)}"
