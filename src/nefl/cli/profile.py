"""`nefl profile`: what each submodel of a family costs."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.table import Table
from torch import Tensor

from nefl.cli.terminal import console_for_tables, say
from nefl.cli.user_files import write_output
from nefl.config import MemberConfig, ModelConfig
from nefl.config.learning import LORA
from nefl.errors import ConfigError, OwnCodeError
from nefl.methods import family_of, method_of, priced
from nefl.models.images import SMALL_IMAGES
from nefl.models.table import find_design
from nefl.nesting.coverage import (
    ExpectedCoverage,
    expected_coverage,
    min_coverage,
    uncovered,
)
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.profile import profile_family
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Blocks, Family
from nefl.nesting.tiers import submodel_probabilities
from nefl.recipes import load_recipe
from nefl.references import is_reference
from nefl.report.figures.family import family_figure
from nefl.report.figures.vega import draw
from nefl.running.tryout import EXAMPLES, check_members, try_out
from nefl.tasks.losses import cross_entropy
from nefl.wire.coding import DTYPES
from nefl.wire.layouts import travel_bytes
from nefl.wording import counted
from nefl.wording import show_bytes as show_bytes
from nefl.wording import show_count as show_count

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
    own = is_reference(model)
    if model == LORA:
        raise ConfigError(
            f"{LORA}: its costs are those of its base, which a recipe names; see them with "
            "nefl train RECIPE --dry-run"
        )
    signature = signature_of(
        SMALL_IMAGES if own else find_design(model).usual, input_shape, classes
    )
    if not 1 <= batch <= MAX_BATCH:
        raise ConfigError(f"batch {batch}: give a number from 1 to {MAX_BATCH}")
    if cohort < 1:
        raise ConfigError(f"cohort {cohort}: give 1 or more clients")
    shares = None if ratios is None else tuple(parse_ratios(ratios))
    chosen = ModelConfig(model, method, shares, () if members is None else _members_of(members))
    family = family_of(chosen, signature)
    if own:
        _try_out(chosen, family, signature, guessed=input_shape is None)
    elif members is not None:
        check_members(chosen, family, signature)
    alone = profile_family(family, signature, batch)
    rows = priced(alone, family, method_of(chosen).objective, rounds=1)
    report = {
        "model": model,
        "method": method,
        "classes": signature.outputs,
        "input": list(signature.input_shape),
        "batch": batch,
        "family": family.source,
        "submodels": [asdict(row) | {"wire": _sent(family, row.index)} for row in rows],
        "average": {
            "params": sum(row.params for row in rows) / len(rows),
            "macs": sum(row.macs for row in rows) / len(rows),
            "macs_total": sum(row.macs_total for row in rows) / len(rows),
        },
        "min_coverage": min_coverage(family),
        "uncovered_without_full": sum(uncovered(family, range(1, len(family))).values()),
        "expected_coverage": {"cohort": cohort, **asdict(_coverage(family, cohort))},
    }
    if figure is not None:
        picture = family_figure(family, rows, f"{model} under {method}")
        write_output(figure, draw(picture, figure))
    if as_json:
        say(json.dumps(report, indent=2))
    else:
        _show(report, rows)


def _members_of(recipe: str) -> tuple[MemberConfig, ...]:
    """Return the submodels that a recipe lists.

    Raises:
        ConfigError: if it lists none.
    """
    found = load_recipe(recipe).model.members
    if not found:
        raise ConfigError(f"{recipe}: lists no [[model.members]]; leave out --members")
    return found


def _sent(family: Family, submodel: int) -> dict[str, int]:
    """Return the bytes of a submodel one way, by wire format."""
    return {form: travel_bytes(family, submodel, form=form) for form in DTYPES}


def signature_of(usual: Signature, shape: str | None, classes: int | None) -> Signature:
    """Return what a model is costed for: as usual, but for what the command says."""
    if classes is not None:
        # A transformer that writes texts gives as many numbers as it knows tokens.
        usual = replace(usual, outputs=classes, tokens=classes if usual.each_token else 0)
    return usual if shape is None else replace(usual, input_shape=parse_shape(shape))


@dataclass(frozen=True)
class _Classes:
    """Telling classes apart, as any model may be tried out on."""

    signature: Signature
    gives_logits: bool = True

    def loss_of(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        return cross_entropy(outputs, target)


def _try_out(model: ModelConfig, family: Family, signature: Signature, *, guessed: bool) -> None:
    """Try a user's own model out on noise, as training does on its data."""
    target = torch.zeros(EXAMPLES, dtype=torch.int64)
    try:
        try_out(model, family, _Classes(signature), signature.noise(EXAMPLES), target)
    except OwnCodeError as error:
        if not guessed:
            raise
        raise OwnCodeError(
            f"{error}; no --input was given, so {signature.shown} was taken: give that of your "
            "data, as in --input 1x28x28, and its --classes"
        ) from error.__cause__


def _coverage(family: Family, cohort: int) -> ExpectedCoverage:
    """Return the coverage of a round under the paper's tiers, evenly filled."""
    even = submodel_probabilities([1] * len(family), len(family))
    return expected_coverage(family, cohort, even)


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


def _show(report: dict[str, Any], rows: Sequence[SubmodelProfile]) -> None:
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
    for heading in (*headings, *DTYPES):
        left = heading in ("channels", "blocks")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for row, values in zip(rows, report["submodels"], strict=True):
        table.add_row(
            str(row.index),
            f"{row.gamma_w:.2f}",
            f"{row.gamma_d:.2f}",
            f"{row.gamma:.2f}",
            " ".join(map(str, row.channels)),
            show_blocks(row.blocks),
            show_count(row.params),
            show_count(row.macs_total),
            show_bytes(row.train_memory_bytes),
            *map(show_bytes, values["wire"].values()),
        )
    table.add_section()
    average = report["average"]
    table.add_row("ø", *[""] * 5, show_count(average["params"]), show_count(average["macs_total"]))
    console_for_tables().print(table)


def show_blocks(blocks: Blocks) -> str:
    """Write block vectors compactly: the kept blocks of each stage, runs shortened."""
    return " ".join(_show_stage(stage) for stage in blocks)


def _show_stage(stage: tuple[float, ...]) -> str:
    if len(stage) <= 6 and max(stage) < 10:
        return "".join(f"{step:g}" for step in stage)
    kept = sum(step > 0 for step in stage)
    leading = all(stage[:kept])
    largest = "" if max(stage) <= 1 else f"≤{max(stage):g}"
    return f"{kept}/{len(stage)}{'' if leading else '*'}{largest}"
