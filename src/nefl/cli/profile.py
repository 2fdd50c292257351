"""`nefl profile`: what each submodel of a family costs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from nefl.cli.terminal import console_for_tables, say
from nefl.cli.user_files import write_output
from nefl.config import LocalConfig, ModelConfig, RunConfig, WireConfig
from nefl.config.learning import LORA
from nefl.config.run import AUTO, IMAGES
from nefl.data.catalog import DATASETS
from nefl.errors import ConfigError
from nefl.recipes import is_recipe, load_recipe
from nefl.references import own_model
from nefl.remembered import recall, remember
from nefl.wording import counted, show_bytes, show_count

MAX_BATCH = 1_000_000
MAX_DIGITS = 9


@dataclass(frozen=True)
class _Question:
    """What a family is to be costed for.

    Attributes:
        model: the model and its method.
        shape: one example; what is usual if left out.
        classes: classes to tell apart, or numbers to foretell; likewise.
        local: how clients train.
        cohort: clients in a round.
        rounds: rounds of the run.
        wire: how weights travel.
        spread: how far a client strays from its tier.
    """

    model: ModelConfig
    shape: tuple[int, ...] | None
    classes: int | None
    local: LocalConfig
    cohort: int
    rounds: int
    wire: WireConfig
    spread: int


def profile(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|RECIPE",
            help="resnet18, vit_b_16, …, package.module:function, or a recipe's name or file.",
        ),
    ],
    method: Annotated[
        str | None,
        typer.Option(help="A method, such as heterofl; the recipe's, or nefl-wd, if left out."),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="Classes to tell apart, or numbers to foretell.")
    ] = None,
    input_shape: Annotated[
        str | None,
        typer.Option("--input", help="One example: CxHxW, columns of a table, tokens of a text."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="Batch size of the training memory; the recipe's, or 32, if left out."),
    ] = None,
    ratios: Annotated[
        str | None,
        typer.Option(help="Share of parameters of each submodel, as in 0.2,0.4,0.6,0.8,1."),
    ] = None,
    cohort: Annotated[
        int | None,
        typer.Option(help="Clients in a round, for the coverage; the recipe's, or 10."),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw the family: .svg, .png, .pdf or .json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Show each submodel's size and cost: parameters, MACs, training memory, bytes sent."""
    recipe = load_recipe(subject) if is_recipe(subject) else None
    model = ModelConfig(subject, method or "nefl-wd") if recipe is None else recipe.model
    if model.name == LORA:
        raise ConfigError(
            f"{LORA}: its costs are those of its base, which a recipe names; see them with "
            "nefl train RECIPE --dry-run"
        )
    if method is not None and method != model.method:
        model = replace(model, method=method, method_options={})
    if ratios is not None:
        model = replace(model, ratios=tuple(parse_ratios(ratios)), members=())
    if batch is not None and not 1 <= batch <= MAX_BATCH:
        raise ConfigError(f"batch {batch}: give a number from 1 to {MAX_BATCH}")
    run = recipe or RunConfig(rounds=1)
    clients = run.clients
    question = _Question(
        model,
        None if input_shape is None else parse_shape(input_shape),
        classes,
        run.local if batch is None else replace(run.local, batch_size=batch),
        clients.per_round if cohort is None else cohort,
        run.rounds,
        run.wire,
        0 if clients.capability == "fixed" else clients.spread,
    )
    if question.cohort < 1:
        raise ConfigError(f"cohort {cohort}: give 1 or more clients")
    report = _report(question, recipe, figure)
    if as_json:
        say(json.dumps(report, indent=2))
    else:
        _show(report)


def _report(question: _Question, recipe: RunConfig | None, figure: Path | None) -> dict[str, Any]:
    """Return what a family costs, as it was worked out before or anew; draw it where asked to."""
    if recipe is not None:
        question = _with_known_data(question, recipe)
    # A user's own examples may be others tomorrow.
    unknown = None in (question.shape, question.classes) or own_model(question.model)
    needs_data = recipe is not None and unknown
    known: dict[str, Any] | None = None
    if figure is None and not needs_data:
        known = recall("families", repr(question))
    if known is not None:
        return known
    # Only here is torch needed.
    from nefl.estimate.family import cost_family
    from nefl.tasks.finding import load_task

    task = load_task(recipe) if recipe is not None and needs_data else None
    cost = cost_family(
        question.model,
        question.shape,
        question.classes,
        local=question.local,
        cohort=question.cohort,
        rounds=question.rounds,
        wire=question.wire,
        spread=question.spread,
        usual=None if task is None else task.signature,
        arguments=None if task is None else task.model_arguments(),
    )
    if cost.built_in and not needs_data:
        remember("families", repr(question), cost.report)
    if figure is not None:
        from nefl.report.figures.family import family_figure
        from nefl.report.figures.vega import draw

        title = f"{question.model.name} under {question.model.method}"
        write_output(figure, draw(family_figure(cost.family, cost.rows, title), figure))
    return cost.report


def _with_known_data(question: _Question, recipe: RunConfig) -> _Question:
    """Return a question with what the table of data sets says of a recipe's examples."""
    known = DATASETS.get(recipe.data.name)
    if known is None or known.rows is None or recipe.task not in (AUTO, IMAGES):
        return question
    return replace(
        question,
        shape=question.shape or known.input_shape,
        classes=known.classes if question.classes is None else question.classes,
    )


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
        f"{report['batch']}; {_within(report)}bytes sent one way by wire format; an element is in "
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


def _within(report: Mapping[str, Any]) -> str:
    """Say what is trained besides, which the MACs of a forward pass do not count."""
    return f"trained within: {report['within']} (not in these MACs); " if report["within"] else ""


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
