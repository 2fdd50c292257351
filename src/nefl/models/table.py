"""The models by name, and how one is built from a spec."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from nefl.errors import ConfigError
from nefl.models.resnet import RESNET_INITS, Norm, ResNet, ResNetDesign
from nefl.models.vit import VIT_INITS, VisionTransformer, ViTDesign
from nefl.nesting.spec import Blocks, SubmodelSpec


def _cifar(blocks: int, *, pool: bool = False) -> ResNetDesign:
    """Return the design for small images: 16, 32 and 64 channels, normally without a pool."""
    stages = (16, blocks), (32, blocks), (64, blocks)
    return ResNetDesign(stages, stem_channels=16, pool=pool, init="he")


def _imagenet(*blocks: int) -> ResNetDesign:
    """Return the design of ResNet18 and 34 with the paper's small stem."""
    return ResNetDesign(tuple(zip((64, 128, 256, 512), blocks, strict=True)))


MODELS: dict[str, ResNetDesign | ViTDesign] = {
    "resnet8": _cifar(1),
    "resnet20": _cifar(3),
    "resnet20_pooled": _cifar(3, pool=True),
    "resnet56": _cifar(9),
    "resnet110": _cifar(18),
    "resnet18": _imagenet(2, 2, 2, 2),
    "resnet34": _imagenet(3, 4, 6, 3),
    "wide_resnet101_2": ResNetDesign(
        ((128, 3), (256, 4), (512, 23), (1024, 3)), stem="large", bottleneck=True, expansion=2
    ),
    "vit_b_16": ViTDesign(depth=12, heads=12, head_dim=64, mlp_dim=3072, patch=16),
    "vit_tiny": ViTDesign(depth=6, heads=4, head_dim=16, mlp_dim=128, patch=4),
}

LARGE_INPUTS = ("wide_resnet101_2", "vit_b_16")
"""Models that the paper trains on 224×224 images; the others get 32×32."""

MAX_CLASSES = 1_000_000


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for a name that is not in a table, with the nearest that is."""
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return ConfigError(f"{kind} {name!r} is unknown{hint} There are: {', '.join(known)}")


@dataclass(frozen=True)
class ModelBuilder:
    """A model by name, ready to be built from a spec; it can be sent to another process.

    Attributes:
        name: a key of `MODELS`.
        classes: classes to tell apart.
        input_shape: channels, height and width of an image.
        norm: `tracked` batch norms keep running statistics, `static` ones (HeteroFL's) do not.
        learned_steps: whether step sizes are parameters or constants.
        init: the first weights by name; the design's own if left out.

    Raises:
        ConfigError: if there is no such model or it cannot take such inputs.
    """

    name: str
    classes: int = 10
    input_shape: tuple[int, int, int] = (3, 32, 32)
    norm: Norm = "tracked"
    learned_steps: bool = True
    init: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        if self.name not in MODELS:
            raise unknown_name("model", self.name, MODELS)
        if not 1 <= self.classes <= MAX_CLASSES:
            raise ConfigError(f"classes {self.classes}: give a number from 1 to {MAX_CLASSES}")
        shape = "x".join(map(str, self.input_shape))
        if len(self.input_shape) != 3 or min(self.input_shape) < 1:
            raise ConfigError(f"input {shape}: give channels, height and width, as in 3x32x32")
        if min(self.input_shape[1:]) < 8 or max(self.input_shape[1:]) > 1024:
            raise ConfigError(f"input {shape}: images have sides from 8 to 1024 pixels")
        inits = VIT_INITS if isinstance(MODELS[self.name], ViTDesign) else RESNET_INITS
        if self.init is not None and self.init not in inits:
            raise unknown_name(f"model.init of {self.name}", self.init, inits)
        patch = getattr(MODELS[self.name], "patch", 1)
        if any(side % patch for side in self.input_shape[1:]):
            raise ConfigError(
                f"input {shape}: {self.name} needs sides that are multiples of its patch, {patch}"
            )

    @property
    def full_blocks(self) -> Blocks:
        """The block vectors of the global model: 1 for every block."""
        return full_blocks(self.name)

    def __call__(self, spec: SubmodelSpec) -> nn.Module:
        """Build the module of a spec.

        Raises:
            ConfigError: if it has other stages or blocks than the model.
        """
        found, known = (list(map(len, blocks)) for blocks in (spec.blocks, self.full_blocks))
        if found != known:  # told before anything is built: a file may describe any number
            raise ConfigError(
                f"{len(found)} stages of {str(found)[1:40].rstrip(']')} blocks: {self.name} has "
                f"{len(known)} of {str(known)[1:-1]}; give 0 for a block that is left out"
            )
        design = MODELS[self.name]
        if isinstance(design, ViTDesign):
            return VisionTransformer(
                design,
                spec,
                classes=self.classes,
                input_shape=self.input_shape,
                learned_steps=self.learned_steps,
                init=self.init,
            )
        return ResNet(
            design,
            spec,
            classes=self.classes,
            channels=self.input_shape[0],
            norm=self.norm,
            learned_steps=self.learned_steps,
            init=self.init,
        )


def full_blocks(name: str) -> Blocks:
    """Return the block vectors of a model with nothing skipped."""
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    design = MODELS[name]
    if isinstance(design, ViTDesign):
        return ((1.0,) * design.depth,)
    return tuple((1.0,) * blocks for _, blocks in design.stages)
