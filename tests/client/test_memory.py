"""What a client keeps: the largest corner it has had, and its channels where they are now."""

import pytest
import torch

from nefl.client.memory import recall, renew, roll_kept
from nefl.errors import RunError
from nefl.methods import make_family
from nefl.nesting.rolling import roll
from nefl.nesting.sets import set_layout
from nefl.state import ServerState

FAMILY = make_family("resnet8", "nefl-wd", ratios=(0.3, 0.6, 1.0))
CONV, OWN = "conv1.weight", "bn1.weight"


def filled(submodel: int, value: float) -> dict[str, dict[str, torch.Tensor]]:
    layout = set_layout(FAMILY, submodel).items()
    return {"control": {name: torch.full(info.shape, value) for name, info in layout}}


def test_a_client_that_never_trained_remembers_zeros() -> None:
    found = recall({}, FAMILY, 2, ["control"])
    assert found["control"].keys() == set_layout(FAMILY, 2).keys()
    assert not any(tensor.any() for tensor in found["control"].values())
    assert "bn1.running_mean" not in found["control"], "statistics have no place in a set"


def test_the_largest_corner_is_kept() -> None:
    kept = renew({}, FAMILY, 2, filled(2, 1.0))
    kept = renew(kept, FAMILY, 1, filled(1, 5.0))
    small, middle = (FAMILY.layout(k)[CONV].shape[0] for k in (1, 2))
    now = recall(kept, FAMILY, 2, ["control"])["control"]
    assert now[CONV][:small].eq(5).all()
    assert now[CONV][small:].eq(1).all()
    full = recall(kept, FAMILY, 3, ["control"])["control"]
    assert not full[CONV][middle:].any()
    # What submodels keep for themselves is remembered for each of them.
    assert now[OWN].eq(1).all()
    assert recall(kept, FAMILY, 1, ["control"])["control"][OWN].eq(5).all()
    assert not full[OWN].any()


def test_memory_rolls_as_the_weights_do() -> None:
    family = make_family("resnet8", "fedrolex", ratios=(0.3, 1.0))
    state = family.initial_state(0)
    whole = {name: state.shared[name] for name in set_layout(family, 2)}
    kept = renew({}, family, 2, {"control": whole}, whole=True)
    later: ServerState = roll(roll(roll(state, family), family), family)
    found = recall(roll_kept(kept, family, 3), family, 1, ["control"])["control"]
    for name, tensor in found.items():
        corner = tuple(map(slice, tensor.shape))
        assert torch.equal(tensor, later.shared[name][corner]), name
    part = {"control": recall(kept, family, 1, ["control"])["control"]}
    assert renew({}, family, 1, part, whole=True)[f"control/shared/{CONV}"].shape == (
        family.global_layout[CONV].shape
    )


def test_memory_of_another_model_is_refused() -> None:
    with pytest.raises(RunError, match=r"memory of conv1.weight.*another model"):
        recall({f"control/shared/{CONV}": torch.zeros(3)}, FAMILY, 1, ["control"])
