"""The submodels of the paper's tables, by model, way of scaling and ratios.

Every family ends with the full model. Block vectors are written as the paper prints them, a digit
a block and a space between stages, or as the number of leading blocks that each stage keeps.
"""

from dataclasses import dataclass, replace
from typing import Literal

from nefl.models.rules import depth_rule, exit_rule, width_depth_rule
from nefl.models.table import LARGE_INPUTS, find_design
from nefl.nesting.spec import Blocks, Builder, SubmodelSpec

Scaling = Literal["none", "width", "depth", "both", "rank"]
Ratios = tuple[float, ...]

FIVE: Ratios = (0.2, 0.4, 0.6, 0.8, 1.0)
THREE: Ratios = (0.5, 0.75, 1.0)
SEVERE: Ratios = (0.04, 0.16, 0.36, 0.64, 1.0)


def default_ratios(model: str) -> Ratios:
    """Return the ratios that the paper scales a model by."""
    return THREE if model in LARGE_INPUTS else FIVE


# (gamma_w, blocks) of each submodel but the full one.
_Row = tuple[float, str | tuple[int, ...]]

PAPER: dict[tuple[str, Scaling, Ratios], tuple[_Row, ...]] = {
    ("resnet18", "both", FIVE): (
        (0.34, "11 11 11 10"),
        (0.4, "11 11 11 11"),
        (0.6, "11 11 11 11"),
        (0.8, "11 11 11 11"),
    ),
    # The second vector is not the printed one, which has neither the ratio nor the MACs that the
    # paper reports for it; this one has both.
    ("resnet18", "depth", FIVE): (
        (1, "11 00 11 00"),
        (1, "11 11 00 10"),
        (1, "11 11 11 10"),
        (1, "10 11 00 11"),
    ),
    ("resnet34", "both", FIVE): (
        (0.378296187, "111 1001 100001 101"),
        (0.625390289, "111 1001 111001 101"),
        (0.770943105, "111 1111 111101 101"),
        (0.899800797, "111 1111 111001 111"),
    ),
    ("resnet34", "depth", FIVE): (
        (1, "100 1000 100000 100"),
        (1, "111 1111 110001 100"),
        (1, "111 1111 110001 101"),
        (1, "111 1001 110001 111"),
    ),
    ("resnet56", "both", FIVE): (
        (0.464938491, (4, 4, 4)),
        (0.607811604, (6, 6, 6)),
        (0.777135864, (7, 7, 7)),
        (0.902901024, (8, 8, 8)),
    ),
    ("resnet56", "depth", FIVE): (
        (1, (2, 2, 2)),
        (1, (3, 3, 4)),
        (1, (4, 4, 6)),
        (1, (9, 8, 7)),
    ),
    ("resnet110", "both", FIVE): (
        (0.457252561, " ".join(["111111100000000001"] * 3)),
        (0.603830987, " ".join(["111111111110000001"] * 3)),
        (0.774235493, " ".join(["111111111111100001"] * 3)),
        (0.901429773, " ".join(["111111111111111001"] * 3)),
    ),
    ("resnet110", "depth", FIVE): (
        (1, (16, 4, 3)),
        (1, (14, 7, 7)),
        (1, (17, 13, 10)),
        (1, (16, 16, 14)),
    ),
    ("resnet110", "depth", SEVERE): (
        (1, (1, 1, 1)),
        (1, (5, 3, 3)),
        (1, (6, 6, 7)),
        (1, (11, 11, 12)),
    ),
    ("resnet110", "both", SEVERE): (
        (0.26, (3, 3, 3)),
        (0.42, (7, 7, 7)),
        (0.59, (11, 11, 11)),
        (0.77, (15, 15, 15)),
    ),
    ("wide_resnet101_2", "depth", THREE): (
        (1, "111 1111 11111111100000000000000 110"),
        (1, "111 1111 11111111111111000000000 111"),
    ),
    ("vit_b_16", "depth", THREE): ((1, (6,)), (1, (9,))),
}


@dataclass(frozen=True)
class Submodels:
    """The specs of a family and where they come from."""

    specs: tuple[SubmodelSpec, ...]
    source: str


def find_submodels(
    model: str, scaling: Scaling, ratios: Ratios, build: Builder, *, exits: str = "none"
) -> Submodels:
    """Return the submodels of a model for ratios of parameters, from the paper or by a rule.

    Args:
        model: a name from the table of models.
        scaling: in what the submodels differ.
        ratios: the share of parameters that each is to have, increasing, the last one 1.
        build: the builder, asked for parameter counts where a rule decides.
        exits: `none`; `own`, a classifier for each submodel; or `all`, every submodel also has
            the classifiers of the smaller ones.
    """
    full = find_design(model).full_blocks
    if scaling == "none":
        return Submodels((SubmodelSpec(full),), "the full model alone")
    if exits != "none" and scaling != "rank":
        return Submodels(*exit_rule(build, full, ratios, scaling=scaling, every=exits == "all"))
    if scaling == "width":
        specs = tuple(SubmodelSpec(full, ratio**0.5) for ratio in ratios)
        return Submodels(specs, "width alone: all blocks, width = sqrt(ratio)")
    rows = PAPER.get((model, scaling, ratios))
    if rows is not None:
        specs = tuple(SubmodelSpec(_blocks(kept, full), gamma_w**0.5) for gamma_w, kept in rows)
        return Submodels((*specs, SubmodelSpec(full)), "the paper's table")
    rule = depth_rule if scaling == "depth" else width_depth_rule
    return Submodels(*rule(build, full, ratios))


def _blocks(kept: str | tuple[int, ...], full: Blocks) -> Blocks:
    if isinstance(kept, str):
        return tuple(tuple(float(digit) for digit in stage) for stage in kept.split())
    return tuple(
        (1.0,) * count + (0.0,) * (len(stage) - count)
        for count, stage in zip(kept, full, strict=True)
    )


def compensate_skipped(spec: SubmodelSpec) -> SubmodelSpec:
    """Start each step at 1 plus the number of blocks skipped right after it (NeFL-D_O)."""
    return replace(spec, blocks=tuple(_compensated(stage) for stage in spec.blocks))


def _compensated(stage: tuple[float, ...]) -> tuple[float, ...]:
    steps: list[float] = []
    last_kept = None
    for position, step in enumerate(stage):
        steps.append(step)
        if step:
            last_kept = position
        elif last_kept is not None:
            steps[last_kept] += 1
    return tuple(steps)
