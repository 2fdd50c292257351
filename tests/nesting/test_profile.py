import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from nefl.errors import ConfigError
from nefl.methods import make_family
from nefl.models.images import LARGE_IMAGES, SMALL_IMAGES
from nefl.models.table import ModelBuilder
from nefl.nesting.profile import (
    batch_memory,
    count_macs,
    count_params,
    profile_family,
    weight_memory,
)
from nefl.nesting.signature import Signature
from nefl.nesting.spec import SubmodelSpec, build_on_meta

# Average over the five submodels: millions of parameters and of MACs, as printed.
PAPER_AVERAGES = {
    ("resnet18", "nefl-wd"): ("6.711", "87.7"),
    ("resnet18", "nefl-w"): ("6.718", "85.0"),
    ("resnet18", "nefl-d"): ("6.689", "102.4"),
    ("resnet34", "nefl-wd"): ("12.611", "180.9"),
    ("resnet34", "nefl-w"): ("12.796", "176.0"),
    ("resnet34", "nefl-d"): ("12.931", "193.0"),
    ("resnet56", "nefl-wd"): ("0.521", "78.3"),
    ("resnet56", "nefl-w"): ("0.525", "78.9"),
    ("resnet56", "nefl-d"): ("0.517", "74.8"),
    ("resnet110", "nefl-wd"): ("1.057", "157.7"),
    ("resnet110", "nefl-w"): ("1.062", "158.6"),
    ("resnet110", "nefl-d"): ("1.041", "178.6"),
}

FULL_MODELS = {
    "resnet18": (11_173_962, 11_159_232, 140_181_504),
    "resnet34": (21_282_122, 21_259_968, 291_176_448),
    "resnet56": (855_770, 850_864, 125_747_200),
    "resnet110": (1_730_714, 1_721_776, 253_149_184),
}


@pytest.mark.parametrize(("model", "method"), PAPER_AVERAGES)
def test_the_papers_averages(model: str, method: str) -> None:
    family = make_family(model, method)
    params = macs = 0
    for submodel in range(1, 6):
        module = family.meta_module(submodel)
        params += count_params(module)
        macs += count_macs(module, SMALL_IMAGES)[0]
    got = f"{params / 5e6:.3f}", f"{macs / 5e6:.1f}"
    assert got == PAPER_AVERAGES[model, method]


@pytest.mark.parametrize("model", FULL_MODELS)
def test_the_full_models_to_the_last_digit(model: str) -> None:
    build = ModelBuilder(model)
    module = build_on_meta(build, SubmodelSpec(build.full_blocks))
    convolutions = sum(p.numel() for p in module.parameters() if p.ndim == 4)
    macs, macs_total = count_macs(module, SMALL_IMAGES)
    assert (count_params(module), convolutions, macs) == FULL_MODELS[model]
    assert macs_total == macs + 10 * module.get_submodule("fc").in_features  # type: ignore[operator]


def test_large_models_have_the_papers_size() -> None:
    sizes = {}
    for model in ("wide_resnet101_2", "vit_b_16"):
        build = ModelBuilder(model, LARGE_IMAGES)
        sizes[model] = count_params(build_on_meta(build, SubmodelSpec(build.full_blocks)))
    assert f"{sizes['wide_resnet101_2'] / 1e6:.1f}" == "124.9"
    assert sizes["wide_resnet101_2"] == 124_858_186
    assert f"{sizes['vit_b_16'] / 1e6:.1f}" == "85.8"


def test_profile_of_resnet18() -> None:
    family = make_family("resnet18", "nefl-wd")
    rows = profile_family(family, SMALL_IMAGES, batch_size=32)
    assert [row.step_sizes for row in rows] == [7, 8, 8, 8, 8]
    assert [row.gamma_w for row in rows] == pytest.approx([0.34, 0.4, 0.6, 0.8, 1])
    assert [round(row.gamma, 2) for row in rows] == [0.2, 0.4, 0.6, 0.8, 1]
    assert round(rows[0].gamma_d, 2) == 0.58
    assert rows[3].channels == (58, 115, 229, 458)
    assert rows[4].gamma == rows[4].gamma_d == 1
    memory = [row.train_memory_bytes for row in rows]
    assert memory == sorted(memory)
    sizes = {n: i.nbytes for n, i in family.layout(1).items()}
    assert rows[0].payload_bytes == sum(sizes.values())


def test_width_of_each_stage_is_told_apart() -> None:
    family = make_family("resnet8", "nefl-w")
    mixed = SubmodelSpec(family.specs[0].blocks, (0.5, 0.75, 1.0))
    rows = profile_family(
        type(family)(family.build, (mixed, family.specs[-1])), SMALL_IMAGES, batch_size=1
    )
    assert rows[0].channels == (8, 24, 64)
    assert rows[0].width == (0.5, 0.75, 1.0)
    assert rows[0].gamma_w == pytest.approx(rows[0].gamma, rel=1e-4)


@pytest.mark.parametrize("submodel", [1, 5])
def test_training_memory_against_the_allocator(submodel: int) -> None:
    family = make_family("resnet20", "nefl-w")
    spec = family.specs[submodel - 1]
    meta = family.meta_module(submodel)
    estimate = weight_memory(meta) + batch_memory(meta, SMALL_IMAGES, 32)
    torch.manual_seed(0)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        model = family.build(spec)
        model(torch.randn(32, 3, 32, 32)).square().mean().backward()
    events = recorded.events()
    assert events is not None
    # The allocator's running total, read off the events in the order in which they happened.
    raw = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(raw, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    assert estimate == pytest.approx(peak, rel=0.25)


def test_a_shape_the_model_cannot_take_is_named() -> None:
    family = make_family("resnet8", "nefl-w")
    with pytest.raises(ConfigError, match="input 1x32x32"):
        profile_family(family, Signature((1, 32, 32), 10), 32)


def test_training_counts_what_is_trained() -> None:
    plain = profile_family(make_family("resnet20", "fjord"), SMALL_IMAGES, 8)
    assert [row.train_macs for row in plain] == [3 * row.macs_total for row in plain]
    own, every = (
        profile_family(make_family("resnet20", method), SMALL_IMAGES, 8)[-1]
        for method in ("depthfl", "depthfl-sd")
    )
    assert own.train_macs == 3 * own.macs_total
    assert every.train_macs > 3 * every.macs_total, "its early classifiers are trained too"
