import torch
from torch import nn

from nefl.methods import make_family
from nefl.models.table import ModelBuilder
from nefl.models.vit import SelfAttention, VisionTransformer
from nefl.nesting.corners import extract
from nefl.nesting.signature import Signature
from nefl.nesting.spec import SubmodelSpec, build_on_meta


def test_attention_equals_torchs_own() -> None:
    torch.manual_seed(0)
    mine = SelfAttention(dim=12, heads=3, head_dim=4)
    nn.init.normal_(mine.in_proj_bias)
    theirs = nn.MultiheadAttention(12, 3, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(mine.in_proj_weight.reshape(36, 12))
        theirs.in_proj_bias.copy_(mine.in_proj_bias.reshape(36))
        theirs.out_proj.weight.copy_(mine.out_proj.weight.reshape(12, 12))
        theirs.out_proj.bias.copy_(mine.out_proj.bias)
    x = torch.randn(2, 5, 12)
    expected, _ = theirs(x, x, x)
    torch.testing.assert_close(mine(x), expected, rtol=1e-5, atol=1e-5)


def test_a_corner_keeps_queries_keys_and_values_of_every_head() -> None:
    family = make_family("vit_tiny", "nefl-w")
    state = family.initial_state(0)
    name = "encoder.layers.encoder_layer_0.self_attention.in_proj_weight"
    small = extract(state, family, 1)[name]
    assert small.shape[:2] == (3, 4)
    assert torch.equal(small, state.shared[name][:, :, : small.shape[2], : small.shape[3]])


def test_layer_norms_are_shared_and_steps_are_not() -> None:
    family = make_family("vit_tiny", "nefl-w")
    assert "encoder.layers.encoder_layer_0.ln_1.weight" in family.global_layout
    assert family.own_names(1) == {
        f"encoder.layers.encoder_layer_{j}.{part}_step_size.value"
        for j in range(6)
        for part in ("attention", "mlp")
    }


def test_widths_of_vit_b_16_are_the_authors() -> None:
    family = make_family("vit_b_16", "nefl-w", input_shape=(3, 224, 224))
    dims = [family.layout(k)["class_token"].shape[-1] for k in (1, 2, 3)]
    # ceil(768 * sqrt(gamma) / 12) * 12
    assert dims == [552, 672, 768]


def test_skipped_encoder_blocks_are_absent() -> None:
    family = make_family("vit_b_16", "nefl-d", input_shape=(3, 224, 224))
    blocks = {n.split(".")[2] for n in family.layout(1) if n.startswith("encoder.layers")}
    assert blocks == {f"encoder_layer_{j}" for j in range(6)}


def test_names_are_torchvisions() -> None:
    build = ModelBuilder("vit_b_16", Signature((3, 224, 224), 1000))
    names = set(build_on_meta(build, SubmodelSpec(build.full_blocks)).state_dict())
    block = "encoder.layers.encoder_layer_11"
    expected = {"class_token", "conv_proj.weight", "conv_proj.bias", "encoder.pos_embedding"}
    expected |= {"encoder.ln.weight", "encoder.ln.bias", "heads.head.weight", "heads.head.bias"}
    expected |= {
        f"{block}.{part}.{kind}"
        for part in ("ln_1", "ln_2", "mlp.0", "mlp.3", "self_attention.out_proj")
        for kind in ("weight", "bias")
    }
    expected |= {f"{block}.self_attention.in_proj_{kind}" for kind in ("weight", "bias")}
    assert expected <= names


def test_exits_of_a_transformer() -> None:
    family = make_family("vit_tiny", "depthfl")
    module = family.build(family.specs[0]).eval()
    assert isinstance(module, VisionTransformer)
    assert module.heads is None
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(module.forward_exits(x)[-1], module(x))
    module.train()(x).sum().backward()
    assert all(p.grad is not None for p in module.parameters())
