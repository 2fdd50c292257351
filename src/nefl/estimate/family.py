"""What a family costs, without any run: the price of each submodel, and how often it is trained."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nefl.config import ModelConfig
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
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.profile import profile_family
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family
from nefl.nesting.tiers import submodel_probabilities
from nefl.references import is_reference
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
    batch: int,
    cohort: int,
    usual: Signature | None = None,
) -> FamilyCost:
    """Cost a family out.

    Args:
        model: the model and its method.
        input_shape: one example; what is usual for the model if left out.
        classes: classes to tell apart, or numbers to foretell; likewise.
        batch: the batch size that the training memory is for.
        cohort: clients in a round, for the coverage.
        usual: what is taken where no shape or number is given; the model's own if left out.

    Raises:
        NeflError: if there is no such family, or a model of the user's own does not run.
    """
    own = is_reference(model.name)
    guessed = input_shape is None and usual is None
    if usual is None:
        usual = SMALL_IMAGES if own else find_design(model.name).usual
    signature = signature_of(usual, input_shape, classes)
    family = family_of(model, signature)
    if own:
        _try_out(model, family, signature, guessed=guessed)
    elif model.members:
        check_members(model, family, signature)
    alone = profile_family(family, signature, batch)
    rows = tuple(priced(alone, family, method_of(model).objective, rounds=1))
    report = {
        "model": model.name,
        "method": model.method,
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
    return FamilyCost(family, rows, report, not own and model.method in METHODS)


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


def _coverage(family: Family, cohort: int) -> ExpectedCoverage:
    """Return the coverage of a round under the paper's tiers, evenly filled."""
    even = submodel_probabilities([1] * len(family), len(family))
    return expected_coverage(family, cohort, even)
