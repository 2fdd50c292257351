"""How ratios are split between width and depth where the paper has no table.

Three plain rules. Each returns the specs and a sentence that says what was chosen.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Literal

from nefl.errors import ConfigError
from nefl.nesting.profile import count_params
from nefl.nesting.spec import Blocks, Builder, SubmodelSpec, build_on_meta

Chosen = tuple[tuple[SubmodelSpec, ...], str]

MAX_DEPTHS = 20_000
"""Combinations of depths that the depth rule looks at; deeper stages are thinned out evenly."""

BALANCE = 1e-2
"""How much an uneven depth counts against its distance from the ratio, squared."""


def depth_rule(build: Builder, full: Blocks, ratios: Sequence[float]) -> Chosen:
    """Keep the first blocks of each stage so that the parameters come nearest to the ratios.

    Every stage keeps its first block, unless all stages have only one. Of depths that are equally
    near, the most even one is taken.
    """
    costs = _block_costs(build, full)
    whole = _params(build, SubmodelSpec(full))
    candidates = []
    for counts in depths(full):
        skipped = sum(sum(c[n:]) for c, n in zip(costs, counts, strict=True))
        shares = [n / len(stage) for n, stage in zip(counts, full, strict=True)]
        unevenness = max(shares) - min(shares)
        candidates.append(((whole - skipped) / whole, unevenness**2 * BALANCE, counts))
    picked = _nearest_increasing(candidates, ratios, "depth")
    specs = tuple(SubmodelSpec(leading(counts, full)) for counts in picked)
    return specs, f"a rule: first {_listed(picked)} blocks of each stage, nearest to the ratios"


def width_depth_rule(build: Builder, full: Blocks, ratios: Sequence[float]) -> Chosen:
    """Keep the first `sqrt(ratio)` of each stage's blocks; the width makes up the rest."""
    specs, kept = [], []
    for ratio in ratios:
        counts = tuple(max(1, round(math.sqrt(ratio) * len(stage))) for stage in full)
        blocks = leading(counts, full)
        specs.append(SubmodelSpec(blocks, _fitting_width(build, full, blocks, ratio)))
        kept.append(counts)
    return tuple(specs), (
        f"a rule: first {_listed(kept)} blocks of each stage, about sqrt(ratio) of them; "
        "the width that meets the ratio"
    )


def exit_rule(
    build: Builder,
    full: Blocks,
    ratios: Sequence[float],
    *,
    scaling: Literal["width", "depth", "both", "none"],
    every: bool,
) -> Chosen:
    """Cut off the deepest blocks and put a classifier there (DepthFL; with width too, ScaleFL).

    With width, depth takes about `sqrt(ratio)` and the width makes up the rest; submodels of one
    depth then share its classifier.
    """
    depth = sum(map(len, full))
    whole = _params(build, SubmodelSpec(full))
    candidates = [(1.0, 0.0, (depth,))]
    for end in range(1, depth):
        cut = SubmodelSpec(_first(end, full), exits=(end,))
        candidates.append((_params(build, cut) / whole, 0.0, (end,)))
    if scaling == "both":
        ends = [_nearest_above(candidates, math.sqrt(ratio), ratio) for ratio in ratios]
    else:
        ends = [end for (end,) in _nearest_increasing(candidates, ratios, "depth")]
    specs = []
    for end, ratio, exits in zip(ends, ratios, exits_of(ends, depth, every=every), strict=True):
        blocks = _first(end, full)
        width = _fitting_width(build, full, blocks, ratio, exits) if scaling == "both" else 1.0
        specs.append(SubmodelSpec(blocks, width, exits=exits))
    how = "the width that meets the ratio" if scaling == "both" else "full width"
    return tuple(specs), f"a rule: the first {', '.join(map(str, ends))} of {depth} blocks, {how}"


def exits_of(ends: Sequence[int], depth: int, *, every: bool) -> list[tuple[int, ...]]:
    """Return where each submodel has early classifiers.

    Args:
        ends: how many of the first blocks each keeps, smallest first.
        depth: the blocks of the full model, whose end has the classifier that all models have.
        every: whether a submodel also has those of the smaller ones.
    """
    kept = [set(ends[: index + 1]) if every else {end} for index, end in enumerate(ends)]
    return [tuple(sorted(end for end in each if end < depth)) for each in kept]


@lru_cache(maxsize=4096)
def _params(build: Builder, spec: SubmodelSpec) -> int:
    return count_params(build_on_meta(build, spec))


def leading(counts: Sequence[int], full: Sequence[tuple[float, ...]]) -> Blocks:
    """Keep so many leading blocks of each stage."""
    return tuple(
        stage[:count] + (0.0,) * (len(stage) - count)
        for count, stage in zip(counts, full, strict=True)
    )


def _first(end: int, full: Blocks) -> Blocks:
    """Keep the first `end` blocks of the whole model."""
    starts = [sum(map(len, full[:i])) for i in range(len(full))]
    return leading(
        [min(max(end - start, 0), len(s)) for start, s in zip(starts, full, strict=True)], full
    )


def _block_costs(build: Builder, full: Blocks) -> list[list[int]]:
    """Return the parameters that each block's residual branch adds."""
    whole = _params(build, SubmodelSpec(full))
    costs = []
    for i, stage in enumerate(full):
        # Blocks after the first of a stage are alike in every model of the table.
        probes = []
        for j in range(min(2, len(stage))):
            skipped = tuple(0.0 if k == j else step for k, step in enumerate(stage))
            probes.append(
                whole - _params(build, SubmodelSpec((*full[:i], skipped, *full[i + 1 :])))
            )
        costs.append(probes[:1] + probes[1:] * (len(stage) - 1))
    return costs


def depths(full: Blocks) -> list[tuple[int, ...]]:
    """List the numbers of leading blocks to choose from, for all stages together, the full last.

    Every stage keeps its first block, unless all stages have only one.
    """
    lowest = 1 if max(map(len, full)) > 1 else 0
    stages = [list(range(lowest, len(stage) + 1)) for stage in full]
    while math.prod(map(len, stages)) > MAX_DEPTHS:
        longest = max(stages, key=len)
        longest[:] = longest[-1::-2][::-1]
    return list(product(*stages))


def _nearest_increasing(
    candidates: Sequence[tuple[float, float, tuple[int, ...]]],
    ratios: Sequence[float],
    what: str,
) -> list[tuple[int, ...]]:
    """Choose one candidate a ratio, strictly growing, with the least sum of squared distances.

    Candidates are (share of parameters, penalty, choice); the last ratio takes the largest.
    """
    ranked = sorted(candidates, key=lambda candidate: candidate[0])
    if len(ranked) < len(ratios):
        raise ConfigError(
            f"ratios: {len(ratios)} submodels, but the model has only {len(ranked)} {what}s; "
            "give fewer ratios, or scale in width"
        )
    # best[i]: least cost, with its choices, of the ratios so far that end at candidate i.
    best: list[tuple[float, tuple[int, ...]]] = [
        ((share - ratios[0]) ** 2 + penalty, (i,)) for i, (share, penalty, _) in enumerate(ranked)
    ]
    for ratio in ratios[1:]:
        reached: list[tuple[float, tuple[int, ...]]] = []
        running: tuple[float, tuple[int, ...]] = (math.inf, ())
        for i, (share, penalty, _) in enumerate(ranked):
            reached.append((running[0] + (share - ratio) ** 2 + penalty, (*running[1], i)))
            if best[i][0] < running[0] and (i + 1 == len(ranked) or share < ranked[i + 1][0]):
                running = best[i]
        best = reached
    return [ranked[i][2] for i in best[-1][1]]


def _nearest_above(
    candidates: Sequence[tuple[float, float, tuple[int, ...]]], wanted: float, ratio: float
) -> int:
    """Return the depth nearest to what is wanted that still has the ratio's parameters."""
    enough = [(abs(share - wanted), end) for share, _, (end,) in candidates if share >= ratio]
    return min(enough)[1]


def _fitting_width(
    build: Builder, full: Blocks, blocks: Blocks, ratio: float, exits: tuple[int, ...] = ()
) -> float:
    """Return the width, to three digits, at which these blocks come nearest to the ratio."""
    if ratio == 1:
        return 1.0
    whole = _params(build, SubmodelSpec(full))

    def share(thousandths: int) -> float:
        return _params(build, SubmodelSpec(blocks, thousandths / 1000, exits=exits)) / whole

    low, high = 1, 1000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if share(middle) < ratio else (low, middle)
    return min((low, high), key=lambda width: abs(share(width) - ratio)) / 1000


def _listed(counts: Sequence[tuple[int, ...]]) -> str:
    return ", ".join("/".join(map(str, each)) for each in counts)
