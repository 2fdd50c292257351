"""A submodel that is unlocked does what the one inside it did."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from nefl.config import MemberConfig, ModelConfig
from nefl.methods import family_of, make_family
from nefl.nesting.corners import extract
from nefl.nesting.growing import unlock
from nefl.nesting.inside import members_inside
from nefl.nesting.signature import Signature
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


def test_widths_need_not_rise_with_the_numbers() -> None:
    """What was trained stays; what the one inside lacks comes from others that were trained."""
    members = (
        MemberConfig(width=0.3, blocks=(1, 1, 1)),
        MemberConfig(width=0.7, blocks=(1, 1, 1)),
        MemberConfig(width=0.5, blocks=(3, 3, 3)),
        MemberConfig(),
    )
    family = family_of(
        ModelConfig("resnet20", "nefl-wd", members=members), Signature((3, 32, 32), 10)
    )
    assert [members_inside(family, k) for k in (2, 3, 4)] == [(1,), (1,), (1, 2, 3)]
    state = trained(family, [1, 2])
    grown = unlock(state, family, 2, 3)
    for k in (1, 2):
        assert torch.equal(outputs(grown, family, k), outputs(state, family, k))
    # Channels that submodel 1 lacks were trained by 2: only those of new blocks hand on nothing.
    wider = family.layout(3)["layer1.0.conv2.weight"].shape
    assert wider > family.layout(1)["layer1.0.conv2.weight"].shape
    assert torch.equal(grown.shared["layer1.0.conv2.weight"], state.shared["layer1.0.conv2.weight"])
    norm, inner = "layer1.0.bn1.weight", family.layout(1)["layer1.0.bn1.weight"].shape[0]
    first, second, third = (grown.per_submodel[k][norm] for k in range(3))
    assert torch.equal(third[:inner], first)
    assert torch.equal(third[inner:], second[inner : len(third)])
    new_step = next(n for n in grown.per_submodel[2] if n.startswith("layer1.1.") and "step" in n)
    assert not grown.per_submodel[2][new_step].any()


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


@pytest.mark.parametrize(
    ("model", "signature", "axes"),
    [
        (
            "decoder_tiny",
            Signature((8,), 16, tokens=16, each_token=True),
            {"q_proj.weight": (2,), "o_proj.weight": (1, 2), "up_proj.weight": (1,)},
        ),
        (
            "vit_tiny",
            Signature((3, 32, 32), 10),
            {"in_proj_weight": (3,), "out_proj.weight": (1, 2)},
        ),
    ],
)
def test_new_channels_and_heads_hand_on_nothing(
    model: str, signature: Signature, axes: dict[str, tuple[int, ...]]
) -> None:
    family = family_of(ModelConfig(model, "nefl-w", ratios=(0.3, 1.0)), signature)
    grown = unlock(family.initial_state(0), family, 1, 2)
    for ending, inputs in axes.items():
        name = next(name for name in grown.shared if name.endswith(ending))
        weight, old = grown.shared[name], family.layout(1)[name].shape
        places = torch.stack(torch.meshgrid(*map(torch.arange, weight.shape), indexing="ij"))
        new = [places[axis] >= old[axis] for axis in range(weight.ndim)]
        from_new = torch.stack([new[axis] for axis in inputs]).any(0)
        to_new = torch.stack([n for axis, n in enumerate(new) if axis not in inputs]).any(0)
        assert from_new.any(), name
        assert torch.equal(weight == 0, from_new & ~to_new), name


OWN_CLASSIFIERS = """
from torch import nn
from nefl import Method
from nefl.nesting.modules import BatchNorm, StepSize
method = Method("both", (BatchNorm, StepSize, nn.Linear), learned_steps=True)
"""


def test_a_classifier_of_its_own_does_not_jump_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_classifiers.py").write_text(OWN_CLASSIFIERS)
    monkeypatch.syspath_prepend(tmp_path)
    family = make_family("resnet20", "own_classifiers:method", ratios=(0.3, 1.0))
    assert "fc.weight" in family.own_names(2)
    state = trained(family, [1])
    grown = unlock(state, family, 1, 2)
    wanted, jumped = outputs(state, family, 1), outputs(state, family, 2)
    torch.testing.assert_close(outputs(grown, family, 2), wanted, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(jumped, wanted, atol=1e-2), "else there is nothing to show"
