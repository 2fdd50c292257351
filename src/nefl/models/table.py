"""The models by name, and how one is built from a spec."""

from dataclasses import dataclass

from torch import nn

from nefl.errors import ConfigError, unknown_name
from nefl.models.conv1d import Conv1dDesign
from nefl.models.decoder import DecoderDesign
from nefl.models.design import Design, Making, Norm
from nefl.models.images import SMALL_IMAGES
from nefl.models.mlp import MLPDesign
from nefl.models.resnet import ResNetDesign
from nefl.models.vit import ViTDesign
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Blocks, SubmodelSpec


def _cifar(blocks: int, *, pool: bool = False) -> ResNetDesign:
    """Return the design for small images: 16, 32 and 64 channels, normally without a pool."""
    stages = (16, blocks), (32, blocks), (64, blocks)
    return ResNetDesign(stages, stem_channels=16, pool=pool, init="he")


def _imagenet(*blocks: int) -> ResNetDesign:
    """Return the design of ResNet18 and 34 with the paper's small stem."""
    return ResNetDesign(tuple(zip((64, 128, 256, 512), blocks, strict=True)))


MODELS: dict[str, Design] = {
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
    "decoder_tiny": DecoderDesign(depth=5, dim=64, heads=4, head_dim=16, mlp_dim=192),
    "decoder_mini": DecoderDesign(depth=4, dim=96, heads=3, head_dim=32, mlp_dim=256),
    "decoder_small": DecoderDesign(depth=6, dim=192, heads=6, head_dim=32, mlp_dim=512),
    "mlp": MLPDesign(dim=128, inner=256, depth=5),
    "conv1d": Conv1dDesign(((32, 2), (64, 2), (128, 2))),
}

LARGE_INPUTS = ("wide_resnet101_2", "vit_b_16")
"""Models that the paper trains on 224×224 images; the others get 32×32."""


@dataclass(frozen=True)
class ModelBuilder:
    """A model by name, ready to be built from a spec; it can be sent to another process.

    Attributes:
        name: a key of `MODELS`.
        signature: what it takes and gives.
        norm: `tracked` batch norms keep running statistics, `static` ones (HeteroFL's) do not.
        learned_steps: whether step sizes are parameters or constants.
        init: the first weights by name; the design's own if left out.

    Raises:
        ConfigError: if there is no such model or it cannot take such inputs.
    """

    name: str
    signature: Signature = SMALL_IMAGES
    norm: Norm = "tracked"
    learned_steps: bool = True
    init: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        design = find_design(self.name)
        if (misfit := design.misfit(self.signature)) is not None:
            shown = self.signature.shown
            raise ConfigError(f"input {shown}: {self.name} cannot take it; {misfit}")
        if self.init is not None and self.init not in design.inits:
            raise unknown_name(f"model.init of {self.name}", self.init, design.inits)

    @property
    def full_blocks(self) -> Blocks:
        """The block vectors of the global model: 1 for every block."""
        return find_design(self.name).full_blocks

    def __call__(self, spec: SubmodelSpec) -> nn.Module:
        """Build the module of a spec.

        Raises:
            ConfigError: if it has other stages or blocks than the model.
        """
        design = find_design(self.name)
        found, known = (list(map(len, blocks)) for blocks in (spec.blocks, design.full_blocks))
        if found != known:  # told before anything is built: a file may describe any number
            raise ConfigError(
                f"{len(found)} stages of {str(found)[1:40].rstrip(']')} blocks: {self.name} has "
                f"{len(known)} of {str(known)[1:-1]}; give 0 for a block that is left out"
            )
        making = Making(self.signature, self.norm, self.learned_steps, self.init)
        return design.build(spec, making)


def find_design(name: str) -> Design:
    """Return the design of a model by name.

    Raises:
        ConfigError: if there is no such model.
    """
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    return MODELS[name]
