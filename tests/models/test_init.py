"""First weights are the authors', and others by name."""

import math

import pytest
import torch
from torch import nn

from nefl.config import ModelConfig
from nefl.errors import ConfigError
from nefl.methods import family_of, make_family
from nefl.models.images import SMALL_IMAGES
from nefl.models.table import ModelBuilder
from nefl.nesting.spec import SubmodelSpec


def full(name: str, init: str | None = None) -> nn.Module:
    torch.manual_seed(0)
    build = ModelBuilder(name, init=init)
    return build(SubmodelSpec(build.full_blocks))


def layers(model: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    return [child for child in model.modules() if isinstance(child, nn.Conv2d | nn.Linear)]


def fan_in(layer: nn.Conv2d | nn.Linear) -> int:
    return layer.weight[0].numel()


@pytest.mark.parametrize("name", ["resnet8", "resnet20", "resnet20_pooled", "resnet56"])
def test_narrow_networks_start_by_hes_rule_over_the_fan_in(name: str) -> None:
    for layer in layers(full(name)):
        expected = math.sqrt(2 / fan_in(layer))
        assert float(layer.weight.std()) == pytest.approx(expected, rel=0.25)
        largest = float(layer.weight.abs().max())
        assert largest > 1.8 * expected  # normal, not uniform: that ends at 1.73 deviations
    assert any(isinstance(layer, nn.Linear) for layer in layers(full(name)))


@pytest.mark.parametrize("name", ["resnet18", "wide_resnet101_2"])
def test_wide_networks_start_as_torch_makes_them(name: str) -> None:
    for layer in layers(full(name)):
        bound = fan_in(layer) ** -0.5
        assert float(layer.weight.abs().max()) <= bound + 1e-7
        assert float(layer.weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize("name", ["resnet8", "resnet18"])
def test_a_classifiers_bias_starts_as_torch_makes_it(name: str) -> None:
    bias = full(name).state_dict()["fc.bias"]
    bound = full(name).state_dict()["fc.weight"].shape[1] ** -0.5
    assert 0 < float(bias.abs().max()) <= bound


@pytest.mark.parametrize(("name", "normal"), [("resnet20", True), ("resnet18", False)])
def test_early_classifiers_start_as_their_network_does(name: str, normal: bool) -> None:
    shared = make_family(name, "depthfl").initial_state(0).shared
    weights = {
        key: tensor
        for key, tensor in shared.items()
        if key.startswith("exits.") and key.endswith("weight") and tensor.ndim > 1
    }
    assert any(tensor.ndim == 2 for tensor in weights.values())
    assert any(tensor.ndim == 4 for tensor in weights.values())
    for tensor in weights.values():
        fan = tensor[0].numel()
        expected = math.sqrt(2 / fan) if normal else math.sqrt(1 / (3 * fan))
        assert float(tensor.std()) == pytest.approx(expected, rel=0.25)


def test_norms_are_the_authors() -> None:
    norms = [child for child in full("resnet20").modules() if isinstance(child, nn.BatchNorm2d)]
    assert {(norm.momentum, norm.eps) for norm in norms} == {(0.1, 1e-5)}
    layer_norms = [child for child in full("vit_tiny").modules() if isinstance(child, nn.LayerNorm)]
    assert {norm.eps for norm in layer_norms} == {1e-6}


def test_other_first_weights_by_name() -> None:
    convolution = "layer3.0.conv2.weight"
    by_name = {init: full("resnet8", init).state_dict() for init in ("torch", "he", "he-fan-out")}
    assert torch.equal(by_name["he"][convolution], full("resnet8").state_dict()[convolution])
    stds = {init: float(tensors["fc.weight"].std()) for init, tensors in by_name.items()}
    assert stds["he"] > 2 * stds["torch"]
    assert stds["he-fan-out"] == pytest.approx(stds["torch"], rel=0.2)
    narrowing = "layer2.0.downsample.0.weight"  # 16 channels in, 32 out
    ratio = by_name["he"][narrowing].std() / by_name["he-fan-out"][narrowing].std()
    assert float(ratio) == pytest.approx(math.sqrt(2), rel=0.15)


def test_a_family_starts_by_the_name_in_its_configuration() -> None:
    for init in (None, "torch", "he-fan-out"):
        family = family_of(ModelConfig("resnet8", "nefl-w", init=init), SMALL_IMAGES)
        again = make_family("resnet8", "nefl-w", init=init)
        name = "fc.weight"
        assert torch.equal(
            family.initial_state(3).shared[name], again.initial_state(3).shared[name]
        )
    with pytest.raises(ConfigError, match="'xavier' is unknown.*torch, he, he-fan-out"):
        make_family("resnet8", "nefl-w", init="xavier")
    with pytest.raises(ConfigError, match="There are: torchvision, torch"):
        make_family("vit_tiny", "nefl-w", init="he")


def test_a_vision_transformer_starts_as_torchvisions() -> None:
    """Against torch's own layers, and the rules that torchvision applies to them."""
    model = full("vit_tiny").state_dict()
    dim, mlp = 64, 128
    block = "encoder.layers.encoder_layer_0"
    theirs = nn.MultiheadAttention(dim, 4)
    mine = model[f"{block}.self_attention.in_proj_weight"]
    bound = math.sqrt(6 / (dim + 3 * dim))
    for tensor in (mine, theirs.in_proj_weight):
        assert 0.99 * bound < float(tensor.abs().max()) <= bound
    assert not model[f"{block}.self_attention.in_proj_bias"].any()
    out = model[f"{block}.self_attention.out_proj.weight"]
    assert 0.99 / 8 < float(out.abs().max()) <= 1 / 8
    for name in ("mlp.0", "mlp.3"):
        weight, bias = model[f"{block}.{name}.weight"], model[f"{block}.{name}.bias"]
        glorot = math.sqrt(6 / (dim + mlp))
        assert 0.99 * glorot < float(weight.abs().max()) <= glorot
        assert float(bias.std()) == pytest.approx(1e-6, rel=0.3)
    patches = model["conv_proj.weight"]
    assert float(patches.std()) == pytest.approx((3 * 4 * 4) ** -0.5, rel=0.1)
    for name in ("conv_proj.bias", "class_token", "heads.head.weight", "heads.head.bias"):
        assert not model[name].any()
    assert float(model["encoder.pos_embedding"].std()) == pytest.approx(0.02, rel=0.1)


def test_early_classifiers_of_a_vision_transformer_start_at_zero_too() -> None:
    state = make_family("vit_tiny", "depthfl").initial_state(0)
    heads = [name for name in state.shared if name.startswith("exits.") and ".head." in name]
    assert heads
    assert not any(state.shared[name].any() for name in heads)
