"""Rolling windows: all channels come first in turn, and the full model stays what it is."""

from dataclasses import replace

import pytest
import torch

from nefl.errors import NestingError
from nefl.methods import make_family
from nefl.nesting.corners import extract
from nefl.nesting.rolling import roll, scaled_axes
from nefl.server.stepping import remembering
from nefl.server.steps import Momentum
from nefl.state import ServerState


def marked(state: ServerState, name: str) -> ServerState:
    """Number the elements of one tensor."""
    numbers = torch.arange(state.shared[name].numel(), dtype=torch.float32)
    return replace(state, shared={**state.shared, name: numbers.view(state.shared[name].shape)})


@pytest.mark.parametrize(
    ("submodel", "name"),
    [(1, "layer2.0.bn2.weight"), (1, "fc.weight"), (2, "layer2.0.conv2.weight")],
)
def test_windows_cover_every_element_in_turn(submodel: int, name: str) -> None:
    family = make_family("resnet8", "fedrolex")
    state = marked(family.initial_state(0), name)
    held = torch.zeros(state.shared[name].numel())
    rounds = state.shared[name].shape[-1 if name == "fc.weight" else 0]
    for _ in range(rounds):
        state = roll(state, family)
        held[extract(state, family, submodel)[name].reshape(-1).long()] += 1
    assert held.min() > 0
    assert held.sum() == family.layout(submodel)[name].numel * rounds
    assert (state.shared[name].reshape(-1).long() == torch.arange(held.numel())).all(), (
        "full circle"
    )


def test_a_narrow_window_never_joins_channels_that_are_far_apart() -> None:
    # Both axes of a square tensor move in step, so a window of 15 of 32 channels holds just the
    # pairs less than 15 apart, counted around; wider submodels hold the rest.
    family = make_family("resnet8", "fedrolex")
    name = "layer2.0.conv2.weight"
    state = marked(family.initial_state(0), name)
    held = torch.zeros_like(state.shared[name])
    for _ in range(32):
        state = roll(state, family)
        held.view(-1)[extract(state, family, 1)[name].reshape(-1).long()] += 1
    distance = (torch.arange(32)[:, None] - torch.arange(32)).abs()
    around = torch.minimum(distance, 32 - distance)
    assert ((held[:, :, 0, 0] > 0) == (around < 15)).all()


def test_a_window_wraps_around() -> None:
    family = make_family("resnet8", "fedrolex")
    state = marked(family.initial_state(0), "bn1.weight")
    size = state.shared["bn1.weight"].numel()
    for _ in range(size - 1):
        state = roll(state, family)
    held = extract(state, family, 1)["bn1.weight"].long().tolist()
    assert held == [size - 1, *range(len(held) - 1)]


@pytest.mark.parametrize("model", ["resnet8", "resnet20_pooled", "vit_tiny"])
def test_rolling_changes_nothing_that_the_full_model_computes(model: str) -> None:
    family = make_family(model, "fedrolex")
    state = family.initial_state(3)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def logits(state: ServerState) -> torch.Tensor:
        module = family.build(family.specs[-1])
        module.load_state_dict(extract(state, family, len(family)))
        with torch.no_grad():
            return module(images)  # type: ignore[no-any-return]

    before = logits(state)
    for _ in range(5):
        state = roll(state, family)
    torch.testing.assert_close(logits(state), before, rtol=1e-4, atol=1e-4)


def test_what_a_step_remembers_of_a_channel_goes_with_it() -> None:
    family = make_family("resnet8", "fedrolex")
    state = remembering(family.initial_state(3), family, Momentum())
    told = {name: state.shared[name.split("/", 2)[2]] * 2 for name in state.memory}
    rolled = roll(replace(state, memory=told), family)
    assert not torch.equal(rolled.shared["fc.weight"], state.shared["fc.weight"])
    for name, tensor in rolled.memory.items():
        assert torch.equal(tensor, rolled.shared[name.split("/", 2)[2]] * 2)
    assert len(rolled.memory) == len(state.shared)


def test_only_scaled_axes_are_rolled() -> None:
    family = make_family("resnet8", "fedrolex")
    assert scaled_axes(family, "conv1.weight") == (0,), "not the image's channels, not the kernel"
    assert scaled_axes(family, "layer1.0.conv1.weight") == (0, 1)
    assert scaled_axes(family, "fc.weight") == (1,), "not the classes"
    assert scaled_axes(family, "fc.bias") == ()


def test_tensors_of_submodels_own_cannot_be_rolled() -> None:
    family = make_family("resnet8", "fjord")
    with pytest.raises(NestingError, match="tensors of their own"):
        roll(family.initial_state(0), family)
