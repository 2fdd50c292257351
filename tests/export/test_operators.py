"""An archive calls operators of a list only, and they keep to their memory."""

import pytest
import torch
from torch import Tensor, nn

from nefl.export.fold import fold
from nefl.export.operators import OPERATORS, guard, is_allowed
from nefl.export.quantize import quantize
from nefl.extras import quiet
from nefl.models.table import ModelBuilder
from nefl.nesting.signature import Signature
from nefl.nesting.spec import SubmodelSpec


@pytest.mark.parametrize(
    "name",
    [
        "max_pool2d_with_indices_backward.default",
        "max_pool3d_with_indices_backward.default",
        "adaptive_max_pool2d_backward.default",
        "segment_reduce.default",
        "ctc_loss.default",
        "save.default",
        "from_file.default",
        "as_strided.default",
        "add.out",
        "div.Tensor_mode",  # the least integer by -1 ends the process
    ],
)
def test_operators_that_trust_their_arguments_are_not_on_the_list(name: str) -> None:
    assert not is_allowed(f"torch.ops.aten.{name}")


def test_every_operator_of_the_list_is_one_of_torch() -> None:
    for target in OPERATORS:
        space, name, overload = target.removeprefix("torch.ops.").split(".")
        if space == "aten":
            assert overload in getattr(torch.ops.aten, name).overloads(), target


IMAGES = Signature((1, 8, 8), 10)
NEXT = Signature((8,), 256, tokens=256, each_token=True)
TEXT = Signature((8,), 3, tokens=257, padding=256)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize(
    ("model", "signature"),
    [
        ("resnet20_pooled", IMAGES),
        ("vit_tiny", IMAGES),
        ("decoder_tiny", NEXT),
        ("decoder_tiny", TEXT),
        ("mlp", Signature((5,), 1)),
        ("conv1d", Signature((2, 8), 3)),
    ],
)
def test_own_models_need_no_others(model: str, signature: Signature, int8: bool) -> None:
    build = ModelBuilder(model, signature)
    first = build.full_blocks[0]
    blocks = (tuple(float(place == 0) for place in range(len(first))), *build.full_blocks[1:])
    network = fold(build(SubmodelSpec(blocks)).eval()).network
    inputs = signature.noise(2)
    with quiet():
        plain = quantize(network, inputs) if int8 else network
        nodes = torch.export.export(plain, (inputs,)).graph.nodes
    targets = [str(n.target) for n in nodes if n.op == "call_function"]
    known = [t if t.startswith("<") else f"torch.ops.{t}" for t in targets]
    assert {t for t in known if t != "<built-in function getitem>"} <= OPERATORS
    assert any("quantized_decomposed" in target for target in targets) == int8


class _Attention(nn.Module):
    def forward(self, x: Tensor, key: Tensor, value: Tensor) -> Tensor:
        attend = torch.ops.aten.scaled_dot_product_attention.default
        return attend(x, key, value)  # type: ignore[no-any-return]


def test_attention_reads_no_further_than_its_values() -> None:
    x = torch.randn(1, 2, 7, 4)
    network = torch.fx.symbolic_trace(_Attention())
    expected = network(x, x, x)
    guard(network)
    assert torch.equal(network(x, x, x), expected)
    with pytest.raises(ValueError, match=r"keys \(1, 2, 7, 4\), values \(1, 2, 3, 4\)"):
        network(x, x, x[:, :, :3])
