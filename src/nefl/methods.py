"""The methods: NeFL, its variants and its rivals, each a row of the same few choices."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from torch import nn

from nefl.config import ModelConfig
from nefl.errors import ConfigError, unknown_name
from nefl.losses import LossName
from nefl.models.design import Norm
from nefl.models.families import (
    Scaling,
    compensate_skipped,
    default_ratios,
    find_submodels,
)
from nefl.models.ordered_dropout import OrderedDropoutBuilder
from nefl.models.table import ModelBuilder
from nefl.nesting.modules import BatchNorm, StepSize
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Builder, Family
from nefl.own_code import call_own
from nefl.references import import_function, is_reference
from nefl.server.steps import ServerStep

Exits = Literal["none", "own", "all"]
Members = Literal["scaled", "full", "capable", "small"]


@dataclass(frozen=True)
class Method:
    """One way of training a family.

    Attributes:
        scaling: in what the submodels differ.
        per_submodel: module classes whose tensors each submodel keeps for itself.
        learned_steps: whether step sizes are trained or keep their initial values.
        compensated: whether steps start at 1 plus the blocks skipped after them, instead of at 1.
        norm: tracked or static batch norms.
        exits: which early classifiers a submodel has.
        loss: what clients minimise.
        clip_norm: largest gradient norm in local training, if it is clipped.
        members: which submodels there are: those of the scaling, by what a client can do
            (`scaled`); the full one alone, for every client (`full`) or only for those that can
            train it just then (`capable`); or the smallest alone, for every client (`small`).
        ordered_dropout: whether a client trains narrower nets within its own (FjORD).
        rolling: whether each round shifts which channels come first (FedRolex).
        step: what the server makes of a round's average, where that is part of the method.
        about: the method in a few words.
    """

    scaling: Scaling
    per_submodel: tuple[type[nn.Module], ...] = (BatchNorm, StepSize)
    learned_steps: bool = False
    compensated: bool = False
    norm: Norm = "tracked"
    exits: Exits = "none"
    loss: LossName = "plain"
    clip_norm: float | None = None
    members: Members = "scaled"
    ordered_dropout: bool = False
    rolling: bool = False
    step: ServerStep | None = None
    about: str = ""


METHODS: dict[str, Method] = {
    "nefl-wd": Method("both", learned_steps=True, about="NeFL, width and depth"),
    "nefl-w": Method("width", learned_steps=True, about="NeFL, width alone"),
    "nefl-d": Method("depth", learned_steps=True, about="NeFL, depth alone"),
    "nefl-do": Method(
        "depth", learned_steps=True, compensated=True, about="NeFL-D, steps start larger"
    ),
    "nefl-wd-nl": Method("both", about="NeFL-WD with constant steps"),
    "nefl-w-nl": Method("width", about="NeFL-W with constant steps"),
    "nefl-d-nl": Method("depth", about="NeFL-D with constant steps"),
    "nefl-do-nl": Method("depth", compensated=True, about="NeFL-D_O with constant steps"),
    "nefl-wd-steps": Method(
        "both", (StepSize,), learned_steps=True, about="NeFL-WD, but batch norms are shared"
    ),
    "nefl-wd-shared": Method("both", (), about="NeFL-WD, all shared and steps constant"),
    "fjord": Method("width", about="FjORD: width, batch norms per submodel"),
    "fjord-od": Method(
        "width", (), ordered_dropout=True, about="FjORD with ordered dropout in local steps"
    ),
    "heterofl": Method(
        "width", (), norm="static", clip_norm=1.0, about="HeteroFL: width, static norms"
    ),
    "fedrolex": Method(
        "width",
        (),
        norm="static",
        clip_norm=1.0,
        rolling=True,
        about="FedRolex: HeteroFL with rolling windows",
    ),
    "depthfl": Method("depth", (), exits="own", about="DepthFL as compared in the paper"),
    "depthfl-sd": Method(
        "depth", (), exits="all", loss="mutual", about="DepthFL: all exits, self-distillation"
    ),
    "scalefl": Method("both", (), exits="own", about="ScaleFL as compared in the paper"),
    "scalefl-sd": Method(
        "both", (), exits="all", loss="graded", about="ScaleFL: all exits, self-distillation"
    ),
    "fedavg": Method("none", (), members="full", about="FedAvg: the full model for everyone"),
    "fedavg-capable": Method(
        "none", (), members="capable", about="FedAvg: the full model, only those who can train it"
    ),
    "fedavg-small": Method(
        "both", (), members="small", about="FedAvg: the smallest submodel for everyone"
    ),
}


def find_method(name: str) -> Method:
    """Return a method by name.

    Raises:
        ConfigError: if there is no such method.
    """
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return METHODS[name]


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
    if not is_reference(model.name):
        return _built_in(model.name, model.method, signature, model.ratios, model.init)
    row = find_method(model.method)
    if row.ordered_dropout or row.members == "capable":
        raise ConfigError(
            f"model.method {model.method}: needs a model of nefl's own; with {model.name} take "
            "another method, such as fjord or fedavg"
        )
    for key in ("ratios", "init"):
        if getattr(model, key) is not None:
            raise ConfigError(f"model.{key}: {model.name} decides on that itself; leave it out")
    given = arguments or {"classes": signature.outputs, "input_shape": signature.input_shape}
    family = call_own(model.name, import_function(model.name), dict(given))
    if not isinstance(family, Family):
        raise ConfigError(
            f"{model.name}: returned {type(family).__name__}, expected a Family; return "
            "nefl.Family(build, specs)"
        )
    if row.members == "scaled":
        return family
    specs = family.specs[:1] if row.members == "small" else family.specs[-1:]
    return replace(family, specs=specs, source=f"{family.source}, one of them")


def make_family(
    model: str,
    method: str,
    *,
    classes: int = 10,
    input_shape: tuple[int, int, int] = (3, 32, 32),
    ratios: Sequence[float] | None = None,
    init: str | None = None,
) -> Family:
    """Return the family of a model under a method, as in the paper where it has one.

    Args:
        model: a name from `nefl.models.table.MODELS`.
        method: a name from `METHODS`.
        classes: classes to tell apart.
        input_shape: channels, height and width of an image.
        ratios: the share of the full model's parameters for each submodel, the last one 1; the
            paper's for that model if left out.
        init: the first weights by name; the model's own if left out.

    Raises:
        ConfigError: if a name is unknown or a number cannot be.
    """
    return _built_in(model, method, Signature(tuple(input_shape), classes), ratios, init)


def _built_in(
    model: str,
    method: str,
    signature: Signature,
    ratios: Sequence[float] | None,
    init: str | None,
) -> Family:
    row = find_method(method)
    build: Builder = ModelBuilder(model, signature, row.norm, row.learned_steps, init)
    wanted = default_ratios(model) if ratios is None else check_ratios(ratios)
    found = find_submodels(model, row.scaling, wanted, build, exits=row.exits)
    specs = tuple(map(compensate_skipped, found.specs)) if row.compensated else found.specs
    if row.members == "small":
        specs = specs[:1]
    vouched_for = ""
    if row.ordered_dropout:
        build = OrderedDropoutBuilder(build, specs)
        vouched_for = "the full model has the norms of every narrower net, and uses its own alone"
    return Family(build, specs, row.per_submodel, found.source, vouched_for=vouched_for)


def capability_levels(model: ModelConfig, submodels: int) -> int:
    """Return how many levels of capability clients are told apart by; normally the submodels.

    Where only capable clients take part in training the full model, the levels are those of the
    submodels that there would be.
    """
    if find_method(model.method).members != "capable" or is_reference(model.name):
        return submodels
    return len(default_ratios(model.name) if model.ratios is None else model.ratios)
