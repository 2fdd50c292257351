"""The zero-extension check finds what names and shapes cannot, and passes what nests."""

import math
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nefl import Exit, Family, NestingError, StepSize, SubmodelSpec, check_family
from nefl.methods import METHODS, make_family
from nefl.nesting.spec import kept_channels

HALF = SubmodelSpec(((1.0,),), width=0.5)
FULL = SubmodelSpec(((1.0,),))
IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
TOKENS = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1))


class Wrapped(nn.Module):
    """Maps to the scaled width, does something there, and maps to classes."""

    def __init__(self, channels: int, middle: nn.Module, outputs: int | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(6, channels)
        self.middle = middle
        self.head = nn.Linear(outputs or channels, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = self.middle(self.first(x))
        return self.head((out[0] if isinstance(out, tuple) else out).mean(1))  # type: ignore[no-any-return]


class Fused(nn.Module):
    """Queries, keys and values out of one linear layer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(channels, 3 * channels)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        return (query @ key.transpose(1, 2)).softmax(-1) @ value  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Torch's own attention, of an input with itself."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(channels, channels // 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x)[0]  # type: ignore[no-any-return]


class Dense(nn.Module):
    """A concatenation of scaled features."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, torch.relu(self.inner(x))], -1)


class Scaled(nn.Module):
    """A constant that follows the width."""

    def forward(self, x: Tensor) -> Tensor:
        return x / math.sqrt(x.shape[-1])


class Flat(nn.Module):
    """A linear layer behind a feature map whose channels come last."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
        self.fc = nn.Linear(channels * 64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).permute(0, 2, 3, 1).flatten(1))  # type: ignore[no-any-return]


def family_of(build: Callable[[int], nn.Module]) -> Family:
    return Family(lambda spec: build(kept_channels(16, spec.stage_width(0))), (HALF, FULL))


WRONG: dict[str, tuple[Callable[[int], nn.Module], Tensor, str]] = {
    "fused linear": (lambda c: Wrapped(c, Fused(c)), TOKENS, "middle"),
    "torch's attention": (lambda c: Wrapped(c, Attention(c)), TOKENS, "middle.inner"),
    "torch's encoder layer": (
        lambda c: Wrapped(c, nn.TransformerEncoderLayer(c, c // 4, 2 * c, batch_first=True)),
        TOKENS,
        "middle.self_attn",
    ),
    "gates of an LSTM": (lambda c: Wrapped(c, nn.LSTM(c, c, batch_first=True)), TOKENS, "middle"),
    "a concatenation": (lambda c: Wrapped(c, Dense(c), 2 * c), TOKENS, "middle"),
    "a constant of the width": (lambda c: Wrapped(c, Scaled()), TOKENS, "middle"),
    "flattened channels": (Flat, IMAGES, "fc"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_only_looks_nested_is_refused(name: str) -> None:
    build, example, culprit = WRONG[name]
    family = family_of(build)  # names and shapes are right
    with pytest.raises(NestingError, match=rf"^{culprit}: submodel 1 gives another output"):
        check_family(family, example)


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("model", ["resnet20_pooled", "vit_tiny"])
def test_our_own_families_nest(model: str, method: str) -> None:
    images = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    check_family(make_family(model, method, input_shape=(3, 16, 16)), images)


def test_norms_may_have_other_statistics() -> None:
    check_family(
        family_of(lambda c: Wrapped(c, nn.Sequential(nn.LayerNorm(c), nn.GELU(), nn.RMSNorm(c)))),
        TOKENS,
    )


class OwnNorm(nn.Module):
    """A normalisation that torch does not know of."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / x.square().mean(-1, keepdim=True).sqrt()


def test_a_norm_of_ones_own_is_named() -> None:
    family = family_of(lambda c: Wrapped(c, OwnNorm(c)))
    with pytest.raises(NestingError, match=r"^middle: .*Family\(norm_classes"):
        check_family(family, TOKENS)
    check_family(Family(family.build, family.specs, norm_classes=(OwnNorm,)), TOKENS)


def test_a_builder_may_know_better() -> None:
    family = family_of(lambda c: Wrapped(c, Scaled()))
    why = "the factor is meant to follow the width"
    check_family(Family(family.build, family.specs, vouched_for=why), TOKENS)


class Residual(nn.Module):
    def __init__(self, step: float) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.step = StepSize(step, learned=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.step(x, torch.relu(self.inner(x)))  # type: ignore[no-any-return]


def test_blocks_that_are_numbered_anew_are_refused() -> None:
    specs = (SubmodelSpec(((2.0, 0.0, 1.0),)), SubmodelSpec(((1.0, 1.0, 1.0),)))

    def renumbered(spec: SubmodelSpec) -> nn.Module:
        return nn.Sequential(*(Residual(step) for step in spec.blocks[0] if step))

    def numbered(spec: SubmodelSpec) -> nn.Module:
        kept = {str(i): Residual(step) for i, step in enumerate(spec.blocks[0]) if step}
        return nn.Sequential(OrderedDict(kept))

    with pytest.raises(NestingError, match="number blocks by their place"):
        check_family(Family(renumbered, specs), TOKENS)
    check_family(Family(numbered, specs), TOKENS)


class Early(Exit):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.head = nn.Linear(channels, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)  # type: ignore[no-any-return]


class Exiting(nn.Module):
    """Ends at an early classifier if it is a submodel."""

    def __init__(self, channels: int, middle: nn.Module, *, full: bool) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(6, channels), middle
        self.end = nn.Linear(channels, 4) if full else Early(channels)
        self.add_module("late" if full else "early", self.end)
        del self.end

    def forward(self, x: Tensor) -> Tensor:
        x = self.middle(self.first(x))
        (last,) = (child for name, child in self.named_children() if name in ("late", "early"))
        return last(x)  # type: ignore[no-any-return]


def test_what_comes_before_an_early_classifier_is_compared() -> None:
    def build(spec: SubmodelSpec, middle: Callable[[int], nn.Module]) -> nn.Module:
        channels = kept_channels(16, spec.stage_width(0))
        return Exiting(channels, middle(channels), full=spec.is_full)

    check_family(Family(lambda s: build(s, lambda c: nn.Linear(c, c)), (HALF, FULL)), TOKENS)
    with pytest.raises(NestingError, match="^middle: submodel 1"):
        check_family(Family(lambda s: build(s, Fused), (HALF, FULL)), TOKENS)


def test_a_forward_that_insists_on_float32_is_checked_too() -> None:
    class Insisting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.eye(x.shape[-1])

    check_family(family_of(lambda c: Wrapped(c, Insisting())), TOKENS)
    with pytest.raises(NestingError, match="^middle"):
        check_family(family_of(lambda c: Wrapped(c, nn.Sequential(Insisting(), Fused(c)))), TOKENS)


def test_the_check_leaves_torch_as_it_was() -> None:
    before = torch.backends.mha.get_fastpath_enabled(), torch.random.get_rng_state()
    check_family(make_family("resnet8", "nefl-wd"), IMAGES)
    assert torch.backends.mha.get_fastpath_enabled() == before[0]
    assert torch.equal(torch.random.get_rng_state(), before[1])


def test_the_last_member_is_the_full_model_and_none_is_there_twice() -> None:
    def build(spec: SubmodelSpec) -> nn.Module:
        return Wrapped(kept_channels(16, spec.stage_width(0)), nn.ReLU())

    with pytest.raises(NestingError, match="not the full model"):
        Family(build, (HALF, SubmodelSpec(((1.0,),), width=0.75)))
    with pytest.raises(NestingError, match="submodels 1 and 2 are one and the same"):
        Family(build, (HALF, HALF, FULL))
    # Other numbers, the same channels.
    with pytest.raises(NestingError, match="submodels 2 and 3 are one and the same"):
        Family(build, (HALF, SubmodelSpec(((1.0,),), width=0.99), FULL))
    Family(build, (HALF,))  # one small model for everyone
