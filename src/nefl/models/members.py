"""Submodels that are given one by one, instead of by a rule for ratios."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from nefl.config import MemberConfig
from nefl.errors import ConfigError, NestingError
from nefl.models.rules import exits_of, leading
from nefl.nesting.spec import Blocks, SubmodelSpec

SOURCE = "model.members"
"""Where such submodels come from, for people to read."""


def given_specs(members: Sequence[MemberConfig], full: Blocks) -> tuple[SubmodelSpec, ...]:
    """Return the specs of given members.

    Args:
        members: smallest first, the full model last.
        full: the blocks of the full model.

    Raises:
        ConfigError: naming the member that cannot be built, or the last if it is not the full one.
    """
    specs = []
    for number, member in enumerate(members, start=1):
        try:
            specs.append(spec_of(member, full))
        except (ConfigError, NestingError) as error:
            raise _wrong(number, str(error)) from None
    if not specs[-1].is_full:
        raise _wrong(
            len(specs),
            "is the last and not the full model; add one more [[model.members]] without settings",
        )
    return tuple(specs)


def spec_of(member: MemberConfig, full: Blocks) -> SubmodelSpec:
    """Return the spec of one member.

    Raises:
        NeflError: if there can be no such member.
    """
    if member.rank is not None:
        raise ConfigError("rank: is for adapters (model.name lora); give a width")
    blocks = full if member.blocks is None else _blocks(member.blocks, full)
    return SubmodelSpec(blocks, member.width, member.inner_width, member.exits)


def _blocks(given: Sequence[int | tuple[float, ...]], full: Blocks) -> Blocks:
    if len(given) != len(full):
        raise NestingError(
            f"blocks: {len(given)} entries for {len(full)} stages; give for each stage how many "
            "leading blocks stay, or a list of step sizes"
        )
    found = []
    for number, (entry, stage) in enumerate(zip(given, full, strict=True), start=1):
        if isinstance(entry, tuple):
            if len(entry) != len(stage):
                raise NestingError(
                    f"blocks: {len(entry)} step sizes for the {len(stage)} blocks of stage "
                    f"{number}; give one each, 0 for a block that is left out"
                )
            found.append(entry)
        elif 0 <= entry <= len(stage):
            found += leading([entry], [stage])
        else:
            raise NestingError(
                f"blocks: {entry} for stage {number}, which has {len(stage)}; give 0 to that"
            )
    return tuple(found)


def check_scaling(
    specs: Sequence[SubmodelSpec], scaling: str, method: str, *, compensated: bool
) -> None:
    """Raise if given members differ in what a method does not scale.

    Raises:
        ConfigError: naming the member, and a method that takes it.
    """
    for number, spec in enumerate(specs, start=1):
        steps = [step for stage in spec.blocks for step in stage]
        if scaling == "width" and not all(steps):
            raise _wrong(
                number,
                f"skips blocks, and {method} scales width alone; keep all blocks, or take a "
                "method of width and depth, such as nefl-wd",
            )
        if scaling == "depth" and not replace(spec, blocks=specs[-1].blocks).is_full:
            raise _wrong(
                number,
                f"has a width below 1, and {method} scales depth alone; leave it out, or take a "
                "method of width and depth, such as nefl-wd",
            )
        if compensated and any(step not in (0, 1) for step in steps):
            raise _wrong(
                number,
                f"gives step sizes, and {method} starts them at 1 plus the blocks that are "
                "skipped after them; give 0 and 1, or take a method without that, such as nefl-d",
            )


def with_exits(
    specs: Sequence[SubmodelSpec], exits: Literal["none", "own", "all"], method: str
) -> tuple[SubmodelSpec, ...]:
    """Give members the early classifiers that a method asks for, each where its blocks end.

    Raises:
        ConfigError: naming a member that does not keep the first blocks of the whole model, or
            that has exits of its own.
    """
    ends = []
    for number, spec in enumerate(specs, start=1):
        if spec.exits:
            raise _wrong(number, f"exits: follow from the method, {method}; leave them out")
        kept = [step > 0 for stage in spec.blocks for step in stage]
        ends.append(sum(kept))
        if exits != "none" and not (ends[-1] and all(kept[: ends[-1]])):
            raise _wrong(
                number,
                f"skips blocks before others, and {method} puts a classifier where a submodel "
                "ends; keep the first blocks of the whole model",
            )
    if exits == "none":
        return tuple(specs)
    found = exits_of(ends, len(kept), every=exits == "all")
    return tuple(replace(s, exits=e) for s, e in zip(specs, found, strict=True))


def lora_options(options: Mapping[str, Any], members: Sequence[MemberConfig]) -> dict[str, Any]:
    """Return the options of adapters with the ranks, and depths if any is given, of members.

    Raises:
        ConfigError: naming an option or a member that does not go with it.
    """
    if not members:
        return dict(options)
    for key in ("ranks", "depths"):
        if key in options:
            raise ConfigError(
                f"model.options.{key} and model.members: ranks and blocks are given with each "
                "member; leave one of them out"
            )
    for number, member in enumerate(members, start=1):
        if member.rank is None:
            raise _wrong(number, "give its rank")
        if member.width != 1 or member.inner_width is not None or member.exits:
            raise _wrong(number, "an adapter has a rank and blocks, and nothing else; leave it out")
    depths = [_depth(number, member) for number, member in enumerate(members, start=1)]
    found = {**options, "ranks": [member.rank for member in members]}
    if all(depth is None for depth in depths):
        return found
    for number, depth in enumerate(depths, start=1):
        if depth is None:
            raise _wrong(number, "give its blocks too, since other members do, as in blocks = [4]")
    return {**found, "depths": depths}


def _depth(number: int, member: MemberConfig) -> int | None:
    if member.blocks is None:
        return None
    (first, *others) = member.blocks or (None,)
    if not isinstance(first, int) or others:
        raise _wrong(number, "give how many leading blocks have adapters, as in blocks = [4]")
    return first


def _wrong(number: int, why: str) -> ConfigError:
    return ConfigError(f"model.members: number {number}: {why}")
