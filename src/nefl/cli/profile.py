"""`nefl profile`: what each submodel of a family costs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from nefl.cli.terminal import console_for_tables, say
from nefl.cli.user_files import write_output
from nefl.config import MemberConfig, ModelConfig
from nefl.config.learning import LORA
from nefl.errors import ConfigError
from nefl.remembered import recall, remember
from nefl.wording import counted, show_bytes, show_count

MAX_BATCH = 1_000_000
MAX_DIGITS = 9


def profile(
    model: Annotated[
        str, typer.Argument(help="resnet18, vit_b_16, …, or package.module:function.")
    ],
    method: Annotated[str, typer.Option(help="A method, such as nefl-wd or heterofl.")] = "nefl-wd",
    classes: Annotated[
        int | None, typer.Option(help="Classes to tell apart, or numbers to foretell.")
    ] = None,
    input_shape: Annotated[
        str | None,
        typer.Option("--input", help="One example: CxHxW, columns of a table, tokens of a text."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Batch size that the training memory is for.")] = 32,
    ratios: Annotated[
        str | None,
        typer.Option(help="Share of parameters of each submodel, as in 0.2,0.4,0.6,0.8,1."),
    ] = None,
    members: Annotated[
        str | None,
        typer.Option(help="A recipe whose table model.members is taken, instead of ratios."),
    ] = None,
    cohort: Annotated[int, typer.Option(help="Clients in a round, for the coverage.")] = 10,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw the family: .svg, .png, .pdf or .json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Show each submodel's size and cost: parameters, MACs, training memory, bytes sent."""
    if model == LORA:
        raise ConfigError(
            f"{LORA}: its costs are those of its base, which a recipe names; see them with "
            "nefl train RECIPE --dry-run"
        )
    shape = None if input_shape is None else parse_shape(input_shape)
    if not 1 <= batch <= MAX_BATCH:
        raise ConfigError(f"batch {batch}: give a number from 1 to {MAX_BATCH}")
    if cohort < 1:
        raise ConfigError(f"cohort {cohort}: give 1 or more clients")
    shares = None if ratios is None else tuple(parse_ratios(ratios))
    chosen = ModelConfig(model, method, shares, () if members is None else _members_of(members))
    report = _report(chosen, shape, classes, batch, cohort, figure)
    if as_json:
        say(json.dumps(report, indent=2))
    else:
        _show(report)


def _report(
    model: ModelConfig,
    shape: tuple[int, ...] | None,
    classes: int | None,
    batch: int,
    cohort: int,
    figure: Path | None,
) -> dict[str, Any]:
    """Return what a family costs, as it was worked out before or anew; draw it where asked to."""
    what = repr((model, shape, classes, batch, cohort))
    known: dict[str, Any] | None = None if figure else recall("families", what)
    if known is not None:
        return known
    # Only here is torch needed.
    from nefl.estimate.family import cost_family

    cost = cost_family(model, shape, classes, batch=batch, cohort=cohort)
    if cost.built_in:
        remember("families", what, cost.report)
    if figure is not None:
        from nefl.report.figures.family import family_figure
        from nefl.report.figures.vega import draw

        picture = family_figure(cost.family, cost.rows, f"{model.name} under {model.method}")
        write_output(figure, draw(picture, figure))
    return cost.report


def _members_of(recipe: str) -> tuple[MemberConfig, ...]:
    """Return the submodels that a recipe lists.

    Raises:
        ConfigError: if it lists none.
    """
    from nefl.recipes import load_recipe

    found = load_recipe(recipe).model.members
    if not found:
        raise ConfigError(f"{recipe}: lists no [[model.members]]; leave out --members")
    return found


def parse_shape(text: str) -> tuple[int, ...]:
    """Read `CxHxW`, or any other number of sizes.

    Raises:
        ConfigError: if that is not what the text says.
    """
    parts = text.lower().replace("×", "x").split("x")
    if not all(part.strip().isdecimal() and len(part) < MAX_DIGITS for part in parts):
        raise ConfigError(f"input {text!r}: give sizes, as in 3x32x32 (channels, height, width)")
    return tuple(map(int, parts))


def parse_ratios(text: str) -> list[float]:
    """Read numbers with commas between them.

    Raises:
        ConfigError: if one of them is no number.
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"ratios {text!r}: give numbers with commas, as in 0.2,0.4,0.6,0.8,1"
        ) from None


def _show(report: Mapping[str, Any]) -> None:
    shape = "×".join(map(str, report["input"]))
    cover = report["expected_coverage"]
    classes = counted(report["classes"], "class")
    table = Table(
        title=f"{report['model']} under {report['method']}, {classes}, {shape}",
        caption=f"submodels from {report['family']}; training memory for batches of "
        f"{report['batch']}; bytes sent one way by wire format; an element is in "
        f"{counted(report['min_coverage'], 'submodel')} or more, and trained by "
        f"{cover['minimum']:.1f} of {counted(cover['cohort'], 'client')} or more in an average "
        "round",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    headings = ("#", "γ_W", "γ_D", "γ", "channels", "blocks", "params", "MACs", "memory")
    rows = report["submodels"]
    for heading in (*headings, *rows[0]["wire"]):
        left = heading in ("channels", "blocks")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row["index"]),
            f"{row['gamma_w']:.2f}",
            f"{row['gamma_d']:.2f}",
            f"{row['gamma']:.2f}",
            " ".join(map(str, row["channels"])),
            show_blocks(row["blocks"]),
            show_count(row["params"]),
            show_count(row["macs_total"]),
            show_bytes(row["train_memory_bytes"]),
            *map(show_bytes, row["wire"].values()),
        )
    table.add_section()
    average = report["average"]
    table.add_row("ø", *[""] * 5, show_count(average["params"]), show_count(average["macs_total"]))
    console_for_tables().print(table)


def show_blocks(blocks: Sequence[Sequence[float]]) -> str:
    """Write block vectors compactly: the kept blocks of each stage, runs shortened."""
    return " ".join(_show_stage(stage) for stage in blocks)


def _show_stage(stage: Sequence[float]) -> str:
    if len(stage) <= 6 and max(stage) < 10:
        return "".join(f"{step:g}" for step in stage)
    kept = sum(step > 0 for step in stage)
    leading = all(stage[:kept])
    largest = "" if max(stage) <= 1 else f"≤{max(stage):g}"
    return f"{kept}/{len(stage)}{'' if leading else '*'}{largest}"
