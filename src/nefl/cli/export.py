"""`nefl export`: take a submodel, or the whole family, out of a run; or programs that train."""

from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from nefl.artifacts.notes import to_json
from nefl.cli.terminal import console_for_tables, say
from nefl.cli.train import TrustCode
from nefl.config.reading import parse_member
from nefl.elastic.budget import parse_budget
from nefl.errors import ConfigError
from nefl.export.compare import MAX_LOSS, Comparison
from nefl.export.export import (
    EXAMPLES,
    ElasticExport,
    Export,
    export_family,
    export_submodel,
)
from nefl.export.formats import ELASTIC, format_for
from nefl.export.trainable import TrainableExport, export_trainable
from nefl.wording import show_bytes, show_count


def export(
    run: Annotated[
        Path, typer.Argument(help="The run's folder; with --trainable, or a recipe's name.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write; the folder with --trainable.")
    ],
    submodel: Annotated[int | None, typer.Option(help="Its number, from 1.")] = None,
    fits: Annotated[
        str | None,
        typer.Option(help="The largest that fits, as in params<2M,macs<50M,latency<5ms."),
    ] = None,
    member: Annotated[
        str | None,
        typer.Option(help="Any, trained or not, as in 'width = 0.5, blocks = [1, 1, 2]'."),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="safetensors, onnx, executorch, torch-export; huggingface and peft for language "
            "models, folders; elastic for all. "
            "Left out, the end of the file's name decides.",
        ),
    ] = None,
    quantize: Annotated[str | None, typer.Option(help="int8, or nothing for float32.")] = None,
    best: Annotated[bool, typer.Option(help="The best checkpoint, not the newest.")] = False,
    examples: Annotated[
        int, typer.Option("--examples", "--images", help="Test examples to compare on.")
    ] = EXAMPLES,
    max_loss: Annotated[
        float,
        typer.Option(
            help="What int8 may lose of the most important metric: points of one in percent, a "
            "share of others."
        ),
    ] = MAX_LOSS,
    measure: Annotated[bool, typer.Option(help="Measure latency and peak memory.")] = True,
    trainable: Annotated[
        bool, typer.Option("--trainable", help="Programs that train in ExecuTorch.")
    ] = False,
    everyone: Annotated[
        bool, typer.Option("--all", help="With --trainable: all submodels, as without --submodel.")
    ] = False,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Write a submodel as a plain network, or all as an elastic file, and check the file."""
    if trainable:
        if fits or member or quantize or best or form not in (None, "executorch"):
            raise ConfigError(
                "--trainable writes ExecuTorch programs in float32 without weights: leave out "
                "--fits, --quantize, --best and --format"
            )
        if everyone and submodel is not None:
            raise ConfigError("--all and --submodel: give one of them")
        numbers = None if submodel is None else (submodel,)
        written = export_trainable(
            run, out, submodels=numbers, trust_code=trust_code, begun=_tell_program
        )
        if as_json:
            say(to_json({"programs": [_plain_program(each) for each in written]}, indent=2))
        else:
            _show_programs(written)
        return
    if everyone:
        raise ConfigError(
            "--all belongs to --trainable; without it leave out --submodel and --fits"
        )
    if quantize not in (None, "int8"):
        raise ConfigError(f"--quantize {quantize}: there is int8; leave it out for float32")
    form = format_for(out, form, family=submodel is None and fits is None and member is None)
    if form == ELASTIC:
        if (submodel, fits, member, quantize) != (None,) * 4:
            raise ConfigError(
                "an elastic file holds all submodels in float32: leave out --submodel, --fits "
                "and --quantize"
            )
        family = export_family(run, out, best=best, examples=examples, trust_code=trust_code)
        if as_json:
            say(to_json(_plain(family), indent=2))
        else:
            _show_family(family)
        return
    done = export_submodel(
        run,
        out,
        submodel=submodel,
        fits=None if fits is None else parse_budget(fits),
        member=None if member is None else parse_member(member),
        format_name=form,
        quantized=quantize is not None,
        best=best,
        examples=examples,
        max_loss=max_loss,
        measure=measure,
        trust_code=trust_code,
    )
    if as_json:
        say(to_json(_plain(done), indent=2))
    else:
        _show(done)


def _plain(done: Export | ElasticExport) -> dict[str, object]:
    if isinstance(done, ElasticExport):
        return {
            "path": str(done.path),
            "format": ELASTIC,
            "size": done.size,
            "state_bytes": done.state_bytes,
            "card": asdict(done.card),
            "comparisons": [asdict(found) for found in done.comparisons],
        }
    return {
        "path": str(done.path),
        "format": done.format,
        "size": done.size,
        "card": asdict(done.card),
        "comparison": asdict(done.comparison),
        "norms_left": done.plain.norms_left,
        "steps_left": done.plain.steps_left,
        "measured": None if done.measured is None else asdict(done.measured),
    }


def _plain_program(done: TrainableExport) -> dict[str, object]:
    return {
        "path": str(done.path),
        "size": done.size,
        "sha256": done.sha256,
        "card": asdict(done.card),
    }


def _tell_program(submodel: int) -> None:
    say(f"submodel {submodel}: made, or taken from the cache; it may take a minute", err=True)


def _show_programs(written: list[TrainableExport]) -> None:
    card = written[0].card
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{card.model} {card.method}: programs that train, batches of {card.batch_size}",
    )
    for heading in ("submodel", "parameters", "file", "sha256", "path"):
        table.add_column(heading, justify="left" if heading in ("sha256", "path") else "right")
    for done in written:
        shapes = [t.shape for t in done.card.layout if t.role == "parameter"]
        table.add_row(
            str(done.card.submodel),
            show_count(sum(map(prod, shapes))),
            show_bytes(done.size),
            done.sha256[:12],
            Text(str(done.path)),
        )
    console_for_tables().print(table)


def _show(done: Export) -> None:
    console = console_for_tables()
    (card,), found = done.card.submodels, done.comparison
    kind = f"{done.format}{', int8' if done.card.quantized else ''}"
    table = Table(box=box.SIMPLE_HEAD, title=f"submodel {card.number} as {kind}: {done.path}")
    for heading in ("", "estimate", "measured here"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("parameters", show_count(card.params), "")
    table.add_row("MACs for an example", show_count(card.macs), "")
    table.add_row("file", "", show_bytes(done.size))
    if done.measured is not None:
        table.add_row("memory", show_bytes(card.memory), show_bytes(done.measured.memory))
        table.add_row("latency", "", f"{done.measured.latency * 1e3:.2f} ms")
    console.print(table)
    console.print(
        Text(
            f"on {found.examples} test examples: {found.metric.name} {found.value:.4f}, trained "
            f"model {found.trained_value:.4f}; largest difference of outputs "
            f"{found.difference:.2g}{_agreeing(found)}"
        )
    )
    plain = done.plain
    if plain.reason:
        console.print(Text(f"nothing was folded: the model cannot be traced ({plain.reason})"))
    elif plain.norms_left or plain.steps_left:
        console.print(Text(f"left: {plain.norms_left} batch norms, {plain.steps_left} step sizes"))


def _agreeing(found: Comparison) -> str:
    return "" if found.agreement is None else f"; same answer on {found.agreement:.1%}"


def _show_family(done: ElasticExport) -> None:
    console = console_for_tables()
    table = Table(box=box.SIMPLE_HEAD, title=f"elastic file: {done.path}")
    metric = done.card.primary.name
    for heading in ("submodel", "parameters", "MACs", "memory", metric, "difference"):
        table.add_column(Text(heading), justify="right")
    for card, found in zip(done.card.submodels, done.comparisons, strict=True):
        table.add_row(
            str(card.number),
            show_count(card.params),
            show_count(card.macs),
            show_bytes(card.memory),
            f"{found.value:.4f}",
            f"{found.difference:.2g}",
        )
    console.print(table)
    console.print(
        Text(
            f"{show_bytes(done.size)}: {show_bytes(done.state_bytes)} of weights (the global model "
            "and what each submodel has for itself) and their description"
        )
    )
