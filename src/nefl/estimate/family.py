"""What a family costs, without any run: the price of each submodel, and how often it is trained."""

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nefl.config import LocalConfig, ModelConfig, WireConfig
from nefl.errors import OwnCodeError
from nefl.methods import METHODS, family_of, method_of, priced
from nefl.models.images import SMALL_IMAGES
from nefl.models.table import find_design
from nefl.nesting.coverage import (
    ExpectedCoverage,
    expected_coverage,
    min_coverage,
    uncovered,
)
from nefl.nesting.inside import say_within
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.profile import profile_family
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family
from nefl.nesting.tiers import TIER_SPREAD, submodel_probabilities
from nefl.references import import_function, is_reference
from nefl.running.costs import kept_copies
from nefl.running.tryout import EXAMPLES, check_members, try_out
from nefl.tasks.losses import cross_entropy
from nefl.wire.coding import DTYPES
from nefl.wire.layouts import travel_bytes


@dataclass(frozen=True)
class FamilyCost:
    """What a family costs.

    Attributes:
        family: the family.
        rows: the price of each submodel, the smallest first.
        report: all of it in plain values, as JSON has them.
        built_in: whether it follows from nefl's own code alone.
    """

    family: Family
    rows: tuple[SubmodelProfile, ...]
    report: dict[str, Any]
    built_in: bool


def cost_family(
    model: ModelConfig,
    input_shape: tuple[int, ...] | None,
    classes: int | None,
    *,
    local: LocalConfig,
    cohort: int,
    rounds: int = 1,
    wire: WireConfig | None = None,
    spread: int = TIER_SPREAD,
    usual: Signature | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> FamilyCost:
    """Cost a family out.

    Args:
        model: the model and its method.
        input_shape: one example; what is usual for the model if left out.
        classes: classes to tell apart, or numbers to foretell; likewise.
        local: how clients train: its batches and optimiser count.
        cohort: clients in a round, for the coverage.
        rounds: rounds of the run, over whose work the mean is taken.
        wire: how weights travel; as they are, if left out.
        spread: how far a client strays from its tier, for the coverage.
        usual: what is taken where no shape or number is given; the model's own if left out.
        arguments: what the task calls a user's own model with; by its parameters, if left out.

    Raises:
        NeflError: if there is no such family, or a model of the user's own does not run.
    """
    own = is_reference(model.name)
    guessed = input_shape is None and usual is None
    if usual is None:
        usual = SMALL_IMAGES if own else find_design(model.name).usual
    signature = signature_of(usual, input_shape, classes)
    family = family_of(model, signature, _arguments(model, signature, arguments) if own else None)
    if own:
        _try_out(model, family, signature, guessed=guessed)
    elif model.members:
        check_members(model, family, signature)
    copies = kept_copies(model, local)
    alone = profile_family(family, signature, local.batch_size, copies)
    rows = tuple(priced(alone, family, method_of(model).objective, rounds, copies, wire))
    report = {
        "model": model.name,
        "method": model.method,
        "classes": signature.outputs,
        "input": list(signature.input_shape),
        "batch": local.batch_size,
        "family": family.source,
        "within": say_within(family),
        "submodels": [asdict(row) | {"wire": _sent(family, row.index)} for row in rows],
        "average": {
            "params": sum(row.params for row in rows) / len(rows),
            "macs": sum(row.macs for row in rows) / len(rows),
            "macs_total": sum(row.macs_total for row in rows) / len(rows),
        },
        "min_coverage": min_coverage(family),
        "uncovered_without_full": sum(uncovered(family, range(1, len(family))).values()),
        "expected_coverage": {"cohort": cohort, **asdict(_coverage(family, cohort, spread))},
    }
    return FamilyCost(family, rows, report, not own and model.method in METHODS)


def _arguments(
    model: ModelConfig, signature: Signature, arguments: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return what a user's own model function is called with: images bring `classes`, all other
    tasks `outputs`.
    """
    if arguments is None:
        takes = inspect.signature(import_function(model.name)).parameters
        outputs = "outputs" if "outputs" in takes and "classes" not in takes else "classes"
        return {outputs: signature.outputs, "input_shape": signature.input_shape}
    now = {
        "classes": signature.outputs,
        "outputs": signature.outputs,
        "input_shape": signature.input_shape,
    }
    return {key: now.get(key, value) for key, value in arguments.items()}


def signature_of(
    usual: Signature, input_shape: tuple[int, ...] | None, classes: int | None
) -> Signature:
    """Return what a model is costed for: as usual, but for what is given."""
    if classes is not None:
        # A transformer that writes texts gives as many numbers as it knows tokens.
        usual = replace(usual, outputs=classes, tokens=classes if usual.each_token else 0)
    return usual if input_shape is None else replace(usual, input_shape=input_shape)


def _sent(family: Family, submodel: int) -> dict[str, int]:
    """Return the bytes of a submodel one way, by wire format."""
    return {form: travel_bytes(family, submodel, form=form) for form in DTYPES}


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


def _coverage(family: Family, cohort: int, spread: int) -> ExpectedCoverage:
    """Return the coverage of a round under the paper's tiers, evenly filled."""
    even = submodel_probabilities([1] * len(family), len(family), spread)
    return expected_coverage(family, cohort, even)
