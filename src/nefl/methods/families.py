"""From a model and a method to the family of submodels that is trained."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from nefl.config import ModelConfig
from nefl.config.learning import LORA
from nefl.errors import ConfigError
from nefl.methods.finding import find_method, method_of
from nefl.methods.method import Method
from nefl.methods.prices import together_of, work_of
from nefl.models.families import Submodels, compensate_skipped, default_ratios, find_submodels
from nefl.models.members import SOURCE, check_scaling, given_specs, lora_options, with_exits
from nefl.models.ranks import lora_family, open_base, read_lora_options
from nefl.models.table import ModelBuilder
from nefl.nesting.inside import train_within
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family, SubmodelSpec
from nefl.own_code import call_own, own_code, place_of
from nefl.references import import_function, is_reference


def check_ratios(ratios: Sequence[float]) -> tuple[float, ...]:
    """Return the ratios if they make a family: increasing, above 0, the last one 1.

    Raises:
        ConfigError: if they do not.
    """
    checked = tuple(float(ratio) for ratio in ratios)
    increasing = all(a < b for a, b in pairwise(checked))
    if not checked or not increasing or not checked[0] > 0 or not math.isclose(checked[-1], 1):
        raise ConfigError(
            f"ratios {', '.join(map(str, checked)) or '(none)'}: give increasing numbers above 0 "
            "that end with 1, as in 0.2,0.4,0.6,0.8,1"
        )
    return (*checked[:-1], 1.0)


def family_of(
    model: ModelConfig, signature: Signature, arguments: Mapping[str, Any] | None = None
) -> Family:
    """Return the family that a configuration asks for.

    Args:
        model: the model and the method.
        signature: what its models take and give.
        arguments: what a user's own model function is called with; `classes` and `input_shape` if
            left out.

    Raises:
        ConfigError: if a name is unknown, or a user's function returns something else.
    """
    row = method_of(model)
    if model.name != LORA and not is_reference(model.name):
        for option in model.options:
            raise ConfigError(f"model.options.{option}: {model.name} takes no options")
        built = _built_in(model, row, signature)
        return _with_members(built, model.method, row)
    family = _whole_family(model, row, signature, arguments)
    if row.members == "scaled":
        return _with_members(family, model.method, row)
    specs = _one_of(family.specs, row)
    return replace(family, specs=specs, source=f"{family.source}, one of them", within=())


def _whole_family(
    model: ModelConfig, row: Method, signature: Signature, arguments: Mapping[str, Any] | None
) -> Family:
    """Return all submodels of a user's own function, or of adapters."""
    for key in ("ratios", "init", *(("weights",) if model.name == LORA else ())):
        if getattr(model, key) is not None:
            raise ConfigError(f"model.{key}: {model.name} decides on that itself; leave it out")
    given = arguments or {"classes": signature.outputs, "input_shape": signature.input_shape}
    if model.name == LORA:
        return _adapters(model, row, signature, given)
    family = _own(model, row, given)
    if not model.members:
        return family
    specs = given_specs(model.members, family.specs[-1].blocks)
    return replace(family, specs=specs, source=SOURCE, within=())


def _own(model: ModelConfig, row: Method, arguments: Mapping[str, Any]) -> Family:
    """Return the family of a user's own function."""
    if row.fixed_a or row.heads:
        raise ConfigError(
            f"model.method {model.method}: is for adapters (model.name {LORA}); with {model.name} "
            "take another method, such as fjord or fedavg"
        )
    family = call_own(
        model.name, import_function(model.name), dict(arguments) | dict(model.options)
    )
    if not isinstance(family, Family):
        raise ConfigError(
            f"{model.name}: returned {type(family).__name__}, expected a Family; return "
            "nefl.Family(build, specs)"
        )
    return family


def _one_of(specs: tuple[SubmodelSpec, ...], row: Method) -> tuple[SubmodelSpec, ...]:
    """Return the submodels that a method has of a family.

    Raises:
        ConfigError: if it is to have one that is not there.
    """
    if row.members == "scaled":
        return specs
    if row.members == "exclusive" and row.alone > len(specs):
        raise ConfigError(
            f"model.method_options.member is {row.alone}: the family has submodels 1 to "
            f"{len(specs)}"
        )
    place = {"small": 1, "exclusive": row.alone}.get(row.members, len(specs))
    return specs[place - 1 : place]


def _adapters(
    model: ModelConfig, row: Method, signature: Signature, arguments: Mapping[str, Any]
) -> Family:
    """Return the family of adapters that the model's options describe."""
    if row.rolling or row.exits != "none":
        raise ConfigError(
            f"model.method {model.method}: needs a network that is scaled in width or depth; with "
            f"{LORA} take lora, lora-padded, lora-ffa, lora-heads, lora-products or fedavg"
        )
    options = lora_options(model.options, model.members)
    base = str(options.pop("base", ""))
    return lora_family(
        open_base(base, arguments), signature, fixed_a=row.fixed_a, heads=row.heads, **options
    )


def _with_members(family: Family, method: str, row: Method) -> Family:
    """Return the family with the members that a method trains inside its submodels.

    Raises:
        NestingError: if one is not inside.
        ConfigError: if the method has sets too, in which members' own tensors have no place, or
            trains only what members have for themselves where they have nothing.
    """
    objective = row.objective
    who = f"model.method {method}"
    if not type(objective).__module__.startswith("nefl."):
        who += f": members of {place_of(type(objective))}"
    with own_code(who):
        found = train_within(family, lambda submodel: objective.members(family, submodel))
    for submodel in range(1, len(found) + 1):  # while there is no run's folder yet
        if members := found.members_within(submodel):
            work_of(objective, members, submodel, round_number=1)
            together_of(objective, members, submodel)
    if objective.needs_members and not found.within and len(family) > 1:
        raise ConfigError(
            f"{who}: no submodel of this family is inside another, so nothing would be trained "
            "within; take another family, or one that nests (nefl.members_inside tells)"
        )
    if objective.needs_own and found.within and not _own_parameters(found):
        raise ConfigError(
            f"{who}: are to train only what they have for themselves (trains 'own'), and those of "
            "this family have nothing; set model.method_options.trains to 'all', or take a family "
            "with norms or step sizes for each submodel, such as nefl-d"
        )
    if found.within and (objective.keeps or objective.receives or objective.sends):
        raise ConfigError(
            f"{who}: trains members within, and has sets (keeps, receives, sends), in which what "
            "members have for themselves has no place; leave out one or the other"
        )
    return found


def _own_parameters(family: Family) -> bool:
    """Whether members within have parameters for themselves."""
    return any(
        family.roles(member)[name] == "parameter"
        for member in {m for within in family.within for m in within}
        for name in family.own_names(member)
    )


def make_family(
    model: str,
    method: str | Method,
    *,
    classes: int = 10,
    input_shape: tuple[int, int, int] = (3, 32, 32),
    ratios: Sequence[float] | None = None,
    init: str | None = None,
) -> Family:
    """Return the family of a model under a method, as in the paper where it has one.

    Args:
        model: a name from `nefl.models.table.MODELS`.
        method: a name from `METHODS`, or a method itself.
        classes: classes to tell apart.
        input_shape: channels, height and width of an image.
        ratios: the share of the full model's parameters for each submodel, the last one 1; the
            paper's for that model if left out.
        init: the first weights by name; the model's own if left out.

    Raises:
        ConfigError: if a name is unknown or a number cannot be.
    """
    row = find_method(method) if isinstance(method, str) else method
    name = method if isinstance(method, str) else "(given)"
    chosen = ModelConfig(model, name, None if ratios is None else tuple(ratios), init=init)
    built = _built_in(chosen, row, Signature(tuple(input_shape), classes))
    return _with_members(built, name, row)


def _built_in(model: ModelConfig, row: Method, signature: Signature) -> Family:
    if row.scaling == "rank":
        raise ConfigError(
            f"a method that scales ranks needs adapters, and {model.name} has none; take model "
            f"{LORA}, or another method"
        )
    build = ModelBuilder(model.name, signature, row.norm, row.learned_steps, model.init)
    found = _given(model, row, build) if model.members else _by_ratio(model, row, build)
    specs = tuple(map(compensate_skipped, found.specs)) if row.compensated else found.specs
    return Family(build, _one_of(specs, row), row.per_submodel, found.source)


def _given(model: ModelConfig, row: Method, build: ModelBuilder) -> Submodels:
    """Return the submodels that a configuration lists."""
    specs = given_specs(model.members, build.full_blocks)
    check_scaling(specs, row.scaling, model.method, compensated=row.compensated)
    return Submodels(with_exits(specs, row.exits, model.method), SOURCE)


def _by_ratio(model: ModelConfig, row: Method, build: ModelBuilder) -> Submodels:
    wanted = default_ratios(model.name) if model.ratios is None else check_ratios(model.ratios)
    return find_submodels(model.name, row.scaling, wanted, build, exits=row.exits)


def capability_levels(
    model: ModelConfig, signature: Signature, arguments: Mapping[str, Any] | None = None
) -> tuple[int, int]:
    """Return how many levels of capability clients are told apart by, and how many take no part.

    Where only those who can train one submodel take part, the levels are those of the submodels
    that there would be. Elsewhere both are 0: there are as many as submodels, and all take part.
    """
    row = method_of(model)
    if not _asks_for_the_able(row):
        return 0, 0
    if is_reference(model.name):
        whole = len(_whole_family(model, row, signature, arguments))
        return whole, (row.alone or whole) - 1
    return built_in_levels(model)


def built_in_levels(model: ModelConfig) -> tuple[int, int]:
    """Return the levels of capability of a built-in model, as `capability_levels` does."""
    row = method_of(model)
    if is_reference(model.name) or not _asks_for_the_able(row):
        return 0, 0
    if model.members:
        whole = len(model.members)
    elif model.name == LORA:
        whole = len(read_lora_options(model.options).ranks)
    else:
        whole = len(default_ratios(model.name) if model.ratios is None else model.ratios)
    return whole, (row.alone or whole) - 1


def _asks_for_the_able(row: Method) -> bool:
    return row.members in ("capable", "exclusive")
