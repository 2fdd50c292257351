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


class Does(nn.Module):
    """Whatever a function does, with no weights of its own."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        return self._function(x)


class Convolved(nn.Module):
    """Convolves to the scaled width, does something there, and maps to classes."""

    def __init__(self, channels: int, middle: nn.Module, outputs: int | None = None) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.middle = middle
        self.head = nn.Linear(outputs or channels, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.first(x)).mean((2, 3)))  # type: ignore[no-any-return]


def shuffled(x: Tensor) -> Tensor:
    """Swap four groups of channels with their members."""
    return x.reshape(len(x), 4, -1, *x.shape[2:]).transpose(1, 2).flatten(1, 2)


def behind(culprit: nn.Module, channels: int, layers: int = 50) -> nn.Module:
    """Put many plain layers behind a module, without norms or shortcuts."""
    plain = [part for _ in range(layers) for part in (nn.Linear(channels, channels), nn.ReLU())]
    return nn.Sequential(culprit, *plain)


class Positions(nn.Module):
    """Waves whose lengths depend on the width, or on a width that is given."""

    def __init__(self, channels: int, full: int | None = None) -> None:
        super().__init__()
        lengths = 1e4 ** (torch.arange(channels) / (full or channels))
        waves = torch.sin(torch.arange(5)[:, None] / lengths)
        self.register_buffer("waves", waves, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.get_buffer("waves"))


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
    "gates of a GRU": (lambda c: Wrapped(c, nn.GRU(c, c, batch_first=True)), TOKENS, "middle"),
    "a mistake before fifty layers": (
        lambda c: Wrapped(c, behind(Scaled(), c)),
        TOKENS,
        "middle.0",
    ),
    "shuffled channels": (lambda c: Convolved(c, Does(shuffled)), IMAGES, "middle"),
    "groups of another size": (
        lambda c: Convolved(c, nn.Conv2d(c, c, 3, groups=4)),
        IMAGES,
        "middle",
    ),
    "a softmax over channels": (lambda c: Wrapped(c, nn.Softmax(-1)), TOKENS, "middle"),
    "positions of the width": (lambda c: Wrapped(c, Positions(c)), TOKENS, "middle"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_only_looks_nested_is_refused(name: str) -> None:
    build, example, culprit = WRONG[name]
    family = family_of(build)  # names and shapes are right
    with pytest.raises(NestingError, match=rf"^{culprit}: submodel 1 gives another output"):
        check_family(family, example)


def one_of_each_kind() -> list[str]:
    """One method for each kind of family: what else methods differ in builds the same networks."""
    kinds = {(m.scaling, m.norm, m.exits, m.members): name for name, m in METHODS.items()}
    return sorted(name for (scaling, *_), name in kinds.items() if scaling != "rank")


@pytest.mark.parametrize("method", one_of_each_kind())
@pytest.mark.parametrize("model", ["resnet20_pooled", "vit_tiny"])
def test_our_own_families_nest(model: str, method: str) -> None:
    images = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    check_family(make_family(model, method, input_shape=(3, 16, 16)), images)


class Gated(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(channels, channels // 4), nn.Linear(channels // 4, channels)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.up(torch.relu(self.down(x.mean((2, 3))))).sigmoid()
        return x * gate[:, :, None, None]  # type: ignore[no-any-return]


class Tied(nn.Module):
    """A text model whose classifier is its embedding."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.embedding, self.middle = nn.Embedding(20, channels), nn.Linear(channels, channels)
        self.positions = nn.Parameter(torch.zeros(1, 5, channels))
        self.head = nn.Linear(channels, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions
        return self.head(torch.relu(self.middle(x)))  # type: ignore[no-any-return]


class Deviation(nn.Module):
    """A root of a tensor that starts at 1; a scale that starts small."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.variance = nn.Parameter(torch.ones(channels))
        self.scale = nn.Parameter(torch.full((channels,), 1e-4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.variance.sqrt() + self.scale


class Gradient(nn.Module):
    """Differentiates while it computes."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(x.pow(3).sum(), x)[0]


RIGHT: dict[str, tuple[Callable[[int], nn.Module], Tensor]] = {
    "convolutions of each channel": (lambda c: Convolved(c, nn.Conv2d(c, c, 3, groups=c)), IMAGES),
    "shuffled pixels": (lambda c: Convolved(c, nn.PixelShuffle(2), c // 4), IMAGES),
    "norms of groups": (lambda c: Convolved(c, nn.GroupNorm(4, c)), IMAGES),
    "norms without weights": (lambda c: Convolved(c, nn.BatchNorm2d(c, affine=False)), IMAGES),
    "squeeze and excitation": (lambda c: Convolved(c, Gated(c)), IMAGES),
    "tied weights, whole numbers": (Tied, torch.arange(10).view(2, 5)),
    "a root of a weight": (lambda c: Wrapped(c, Deviation(c)), TOKENS),
    "dropout": (lambda c: Wrapped(c, nn.Dropout()), TOKENS),
    "a gradient": (lambda c: Wrapped(c, Gradient()), TOKENS),
    "positions of the full width": (lambda c: Wrapped(c, Positions(c, 16)), TOKENS),
    "one state and no gates": (lambda c: Wrapped(c, nn.RNN(c, c, batch_first=True)), TOKENS),
    "fifty layers": (lambda c: Wrapped(c, behind(nn.Identity(), c)), TOKENS),
    "noise that minds no channel": (
        lambda c: Wrapped(c, Does(lambda x: x + torch.randn(len(x), 1, 1))),
        TOKENS,
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_nests_passes(name: str) -> None:
    build, example = RIGHT[name]
    check_family(family_of(build), example)


def test_what_cannot_be_compared_is_refused_for_that_reason() -> None:
    noisy = family_of(lambda c: Wrapped(c, Does(lambda x: x + torch.randn_like(x))))
    with pytest.raises(NestingError, match="^middle: submodel 1 gives another output there each"):
        check_family(noisy, TOKENS)
    normed = nn.utils.parametrizations.weight_norm
    divided = family_of(lambda c: Wrapped(c, normed(nn.Linear(c, c))))
    with pytest.raises(NestingError, match=r"^head: .* not finite .*vouched_for"):
        check_family(divided, TOKENS)


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


def test_blocks_that_are_numbered_through_all_stages_are_refused() -> None:
    specs = (SubmodelSpec(((1.0, 0.0), (1.0, 1.0))), SubmodelSpec(((1.0, 1.0), (1.0, 1.0))))

    def renumbered(spec: SubmodelSpec) -> nn.Module:
        return nn.Sequential(*(Residual(step) for stage in spec.blocks for step in stage if step))

    with pytest.raises(NestingError, match="number blocks by their place"):
        check_family(Family(renumbered, specs), TOKENS)


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
