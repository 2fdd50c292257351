"""A submodel that is unlocked does what the one inside it did."""

from collections.abc import Sequence

import pytest
import torch

from nefl.methods import make_family
from nefl.nesting.corners import extract
from nefl.nesting.growing import unlock
from nefl.nesting.inside import members_inside
from nefl.nesting.spec import Family
from nefl.state import ServerState

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def trained(family: Family, submodels: Sequence[int]) -> ServerState:
    """Return a state in which all that some submodels hold has been changed."""
    state = family.initial_state(0)
    generator = torch.Generator().manual_seed(1)
    for k in submodels:
        for tensor in extract(state, family, k).values():
            if tensor.is_floating_point():  # extract gives views of the state
                tensor.add_(0.1 * torch.rand(tensor.shape, generator=generator))
    return state


def outputs(state: ServerState, family: Family, submodel: int) -> torch.Tensor:
    model = family.build(family.specs[submodel - 1]).eval()
    model.load_state_dict(extract(state, family, submodel))
    with torch.no_grad():
        found: torch.Tensor = model(IMAGES)
    return found


@pytest.mark.parametrize("method", ["nefl-w", "nefl-d", "nefl-wd"])
def test_nothing_jumps(method: str) -> None:
    family = make_family("resnet20", method, ratios=(0.3, 0.5, 1.0))
    assert members_inside(family, 3) == (1, 2)
    assert members_inside(family, 2) == (1,)
    state = trained(family, [1])
    grown = unlock(state, family, 1, 3)
    torch.testing.assert_close(outputs(grown, family, 1), outputs(state, family, 1))
    inside = members_inside(family, 3)[-1]
    wanted, jumped = outputs(grown, family, inside), outputs(state, family, 3)
    torch.testing.assert_close(outputs(grown, family, 3), wanted, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(jumped, wanted, atol=1e-2), "else there is nothing to show"


def test_what_is_new_can_learn() -> None:
    """Its gradients are not all 0: outgoing weights and step sizes move first."""
    family = make_family("resnet8", "nefl-w")
    state = unlock(trained(family, [1]), family, 1, 2)
    model = family.build(family.specs[1]).train()
    model.load_state_dict(extract(state, family, 2))
    torch.autograd.backward(model(IMAGES).square().mean())
    gradient = model.get_parameter("layer1.0.conv2.weight").grad
    assert gradient is not None
    old = family.layout(1)["layer1.0.conv2.weight"].shape
    assert gradient[: old[0], old[1] :].abs().max() > 0


def test_it_is_not_done_twice() -> None:
    family = make_family("resnet8", "nefl-w")
    state = trained(family, [1, 2])
    assert unlock(state, family, 2, 2) is state
    assert unlock(state, family, 5, 5) is state
