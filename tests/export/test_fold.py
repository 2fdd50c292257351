"""A folded network computes what the trained one does, without norms and steps."""

import pytest
import torch
from torch import Tensor, nn

import nefl
from nefl.export.fold import fold
from nefl.models.table import ModelBuilder
from nefl.nesting.modules import StepSize, measuring_norms
from nefl.nesting.signature import Signature
from nefl.nesting.spec import SubmodelSpec, build_on_meta


def shaken(module: nn.Module, inputs: Tensor) -> nn.Module:
    """Give every tensor values of its own, as training does."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        module.train()
        module(inputs)
        module.eval()
        with measuring_norms(module):
            module(inputs)
    return module


@pytest.mark.parametrize(
    ("model", "method"),
    [
        ("resnet20", "nefl-wd"),
        ("resnet20", "nefl-do"),
        ("resnet20", "nefl-do-nl"),
        ("resnet8", "heterofl"),
        ("resnet20", "depthfl"),
        ("vit_tiny", "nefl-wd"),
    ],
)
def test_folding_changes_nothing_but_the_form(model: str, method: str) -> None:
    torch.manual_seed(0)
    family = nefl.make_family(model, method)
    inputs = torch.randn(4, 3, 32, 32)
    for spec in (family.specs[0], family.specs[-1]):
        module = shaken(family.build(spec), inputs)
        with torch.no_grad():
            wanted = module(inputs)
            plain = fold(module)
            got = plain.network(inputs)
        assert (plain.norms_left, plain.steps_left, plain.reason) == (0, 0, "")
        assert not any("bn" in name or "step" in name for name in plain.network.state_dict())
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
        rebuilt = fold(build_on_meta(family.build, spec)).network.state_dict()
        layout = {name: tensor.shape for name, tensor in rebuilt.items()}
        assert layout == {name: t.shape for name, t in plain.network.state_dict().items()}


class TwoUses(nn.Module):
    """A convolution whose output is used twice: its norm cannot be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.norm = nn.BatchNorm2d(3)
        self.step = StepSize(0.5)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.conv(x)
        total: Tensor = self.step(x, self.norm(branch).relu() + branch)
        return total.mean((2, 3))


class Branching(nn.Module):
    """A module that looks at values: it cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return (self.norm(x) if x.sum() > 0 else x).mean((2, 3))


def test_what_cannot_be_folded_stays() -> None:
    inputs = torch.randn(4, 3, 8, 8)
    module = shaken(TwoUses(), inputs)
    with torch.no_grad():
        wanted = module(inputs)
        plain = fold(module)
        torch.testing.assert_close(plain.network(inputs), wanted)
    assert (plain.norms_left, plain.steps_left) == (1, 1)


def test_a_module_that_cannot_be_traced_is_taken_as_it_is() -> None:
    plain = fold(Branching())
    assert plain.norms_left == 1
    assert plain.reason
    assert plain.network(torch.ones(2, 3, 4, 4)).shape == (2, 3)


@pytest.mark.parametrize(
    "signature",
    [
        Signature((8,), 256, tokens=256, each_token=True),
        Signature((8,), 3, tokens=257, padding=256),
    ],
)
def test_step_sizes_of_texts_go_into_heads_and_feed_forward(signature: Signature) -> None:
    build = ModelBuilder("decoder_tiny", signature)
    module = build(SubmodelSpec(((0.7, 0.0, 1.0, 0.4, 1.0),), 0.5)).eval()
    inputs = signature.noise(3)
    with torch.no_grad():
        wanted = module(inputs)
        plain = fold(module)
        torch.testing.assert_close(plain.network(inputs), wanted)
    assert (plain.norms_left, plain.steps_left, plain.reason) == (0, 0, "")
