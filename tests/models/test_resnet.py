"""A submodel is an ordinary network: compare it with one written out by hand."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from nefl.methods import make_family
from nefl.models.resnet import ResNet
from nefl.models.table import MODELS, ModelBuilder, find_design
from nefl.nesting.coverage import min_coverage
from nefl.nesting.modules import StepSize
from nefl.nesting.spec import Family, SubmodelSpec

Weights = Mapping[str, Tensor]


def norm(w: Weights, name: str, x: Tensor) -> Tensor:
    return F.batch_norm(
        x,
        w[f"{name}.running_mean"],
        w[f"{name}.running_var"],
        w[f"{name}.weight"],
        w[f"{name}.bias"],
    )


def plain_resnet(w: Weights, x: Tensor, blocks: str, *, pool: bool) -> Tensor:
    """Evaluate a ResNet of basic blocks from its weights; `blocks` as the paper prints them."""
    x = F.relu(norm(w, "bn1", F.conv2d(x, w["conv1.weight"], padding=1)))
    if pool:
        x = F.max_pool2d(x, 3, 2, 1)
    for i, stage in enumerate(blocks.split(), start=1):
        for j, kept in enumerate(stage):
            name = f"layer{i}.{j}"
            stride = 2 if i > 1 and j == 0 else 1
            shortcut = x
            if i > 1 and j == 0:
                shortcut = F.conv2d(x, w[f"{name}.downsample.0.weight"], stride=stride)
                shortcut = norm(w, f"{name}.downsample.1", shortcut)
            if kept == "0":
                x = F.relu(shortcut)
                continue
            out = F.conv2d(x, w[f"{name}.conv1.weight"], stride=stride, padding=1)
            out = F.relu(norm(w, f"{name}.bn1", out))
            out = norm(w, f"{name}.bn2", F.conv2d(out, w[f"{name}.conv2.weight"], padding=1))
            x = F.relu(shortcut + w[f"{name}.step_size.value"] * out)
    return F.linear(x.mean((2, 3)), w["fc.weight"], w["fc.bias"])


def randomised(model: nn.Module) -> nn.Module:
    """Give norms and step sizes values that show if one is left out."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point() and ("bn" in name or "downsample.1" in name):
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
            elif "step_size" in name:
                tensor.copy_(0.5 + torch.rand((), generator=generator))
    return model.eval()


@pytest.mark.parametrize(
    ("model", "method", "submodel", "blocks"),
    [
        ("resnet18", "nefl-d", 1, "11 00 11 00"),
        ("resnet18", "nefl-d", 4, "10 11 00 11"),
        ("resnet18", "nefl-wd", 1, "11 11 11 10"),
        ("resnet34", "nefl-wd", 1, "111 1001 100001 101"),
        ("resnet20", "nefl-w", 2, "111 111 111"),
    ],
)
def test_a_submodel_equals_a_network_written_by_hand(
    model: str, method: str, submodel: int, blocks: str
) -> None:
    family = make_family(model, method)
    torch.manual_seed(0)
    module = randomised(family.build(family.specs[submodel - 1]))
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = plain_resnet(
            module.state_dict(), x, blocks, pool=model == "resnet18" or model == "resnet34"
        )
        torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-4)


def test_skipped_blocks_are_absent_and_projections_stay() -> None:
    family = make_family("resnet18", "nefl-d")
    names = set(family.layout(1))
    assert not any(name.startswith(("layer2.1", "layer4.1")) for name in names)
    assert {n for n in names if n.startswith("layer2") and n.endswith("0.weight")} == {
        "layer2.0.downsample.0.weight"
    }
    assert "layer2.0.conv1.weight" not in names
    modules = family.meta_module(1).get_submodule("layer4")
    assert [type(m).__name__ for m in modules.children()] == ["Shortcut"]


def test_gradients_reach_every_parameter_and_the_steps() -> None:
    for method in ("nefl-wd", "nefl-d", "depthfl", "scalefl", "heterofl"):
        family = make_family("resnet20", method)
        for spec in family.specs:
            module = family.build(spec)
            module(torch.randn(4, 3, 16, 16)).square().mean().backward()
            missing = [n for n, p in module.named_parameters() if p.grad is None]
            assert not missing, (method, missing)


def test_static_norms_keep_no_statistics() -> None:
    family = make_family("resnet8", "heterofl")
    names = set(family.layout(1))
    assert "bn1.weight" in names
    assert not any("running" in name or "tracked" in name for name in names)
    assert not family.own_names(1)
    assert "bn1.weight" in family.global_layout


def test_constant_steps_multiply_without_being_stored() -> None:
    build = ModelBuilder("resnet8", learned_steps=False)
    torch.manual_seed(0)
    one = build(SubmodelSpec(build.full_blocks)).eval()
    tripled = build(SubmodelSpec(((3.0,), (3.0,), (3.0,)))).eval()
    tripled.load_state_dict(one.state_dict())
    learned = ModelBuilder("resnet8")(SubmodelSpec(((3.0,), (3.0,), (3.0,)))).eval()
    learned.load_state_dict(one.state_dict(), strict=False)
    x = torch.randn(2, 3, 32, 32)
    assert not torch.allclose(one(x), tripled(x))
    torch.testing.assert_close(learned(x), tripled(x))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (4, 64, 48)])
@pytest.mark.parametrize("model", ["resnet8", "resnet18", "wide_resnet101_2", "vit_tiny"])
def test_any_channels_classes_and_sizes(model: str, shape: tuple[int, int, int]) -> None:
    family = make_family(model, "nefl-w", classes=7, input_shape=shape, ratios=(0.1, 1))
    module = family.build(family.specs[0]).eval()
    with torch.no_grad():
        assert module(torch.randn(2, *shape)).shape == (2, 7)


def test_each_stage_and_block_may_have_a_width_of_its_own() -> None:
    build = ModelBuilder("resnet20")
    full = build.full_blocks
    mixed = SubmodelSpec(full, (0.5, 1.0, 0.25), ((0.25, 0.5, 1), (0.5, 0.5, 0.5), (1, 0.75, 0.1)))
    other = SubmodelSpec(full, (1.0, 0.5, 0.75))
    family = Family(build, (mixed, other, SubmodelSpec(full)))
    assert family.layout(1)["layer1.0.conv1.weight"].shape == (4, 8, 3, 3)
    assert family.layout(1)["layer1.2.conv1.weight"].shape == (16, 8, 3, 3)
    assert family.layout(1)["layer3.2.conv1.weight"].shape == (7, 16, 3, 3)
    assert min_coverage(family) == 1
    for spec in family.specs:
        assert build(spec)(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_wide_submodels_keep_the_shortcuts_of_the_global_model() -> None:
    # At this width stem and first stage happen to have equal channels in a bottleneck network.
    build = ModelBuilder("wide_resnet101_2")
    small = SubmodelSpec(build.full_blocks, 0.01)
    Family(build, (small, SubmodelSpec(build.full_blocks)))


def test_exits_answer_in_order_and_the_deepest_is_the_output() -> None:
    build = ModelBuilder("resnet20")
    spec = SubmodelSpec(((1, 1, 1), (1, 1, 1), (0, 0, 0)), exits=(2, 5, 6))
    module = build(spec).eval()
    assert isinstance(module, ResNet)
    assert set(module.exits) == {"2", "5", "6"}
    assert module.fc is None
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        logits = module.forward_exits(x)
        assert len(logits) == 3
        assert torch.equal(logits[-1], module(x))
    # An exit after a block that this submodel skips sees the features that would go into it.
    skipping = build(SubmodelSpec(((1, 0, 1), (1, 1, 1), (1, 1, 1)), exits=(2,))).eval()
    assert isinstance(skipping, ResNet)
    calls: list[Tensor] = []
    skipping.get_submodule("exits.2").register_forward_pre_hook(lambda _, a: calls.append(a[0]))
    first = skipping.get_submodule("layer1.0")
    outputs: list[Tensor] = []
    first.register_forward_hook(lambda _m, _a, out: outputs.append(out))
    with torch.no_grad():
        assert len(skipping.forward_exits(x)) == 2
    assert torch.equal(calls[0], outputs[0])


def test_steps_of_every_block_are_step_size_modules() -> None:
    for model in MODELS:
        build = ModelBuilder(model, find_design(model).usual)
        with torch.device("meta"):
            module = build(SubmodelSpec(build.full_blocks))
        steps = sum(isinstance(m, StepSize) for m in module.modules())
        blocks = sum(map(len, build.full_blocks))
        assert steps == (2 * blocks if "vit" in model or "decoder" in model else blocks)


def test_nothing_is_filled_that_has_no_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch loads its compiler to fill such tensors, which takes seconds at every start."""

    def fill(tensor: Tensor, **_: object) -> Tensor:
        assert not tensor.is_meta
        return tensor

    monkeypatch.setattr(nn.init, "kaiming_normal_", fill)
    assert len(make_family("resnet8", "nefl-wd")) == 5
