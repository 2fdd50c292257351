"""Networks written from torchvision's published structure, not from nefl's: names, shapes, maths.

They stand in for torchvision, which need not be installed, when checkpoints are written and
compared.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn


class Basic(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = _projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return torch.relu(out + (x if self.downsample is None else self.downsample(x)))


class Wide(nn.Module):
    """A bottleneck whose inner channels are half of its outputs, as in Wide ResNet-2."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = outputs // 2
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        out = torch.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return torch.relu(out + (x if self.downsample is None else self.downsample(x)))


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class TorchvisionResNet(nn.Module):
    def __init__(
        self,
        block: type[Basic] | type[Wide],
        outputs: tuple[int, ...],
        blocks: tuple[int, ...],
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = 64
        for stage, (channels, count) in enumerate(zip(outputs, blocks, strict=True)):
            layers: list[nn.Module] = []
            for position in range(count):
                stride = 2 if stage and position == 0 else 1
                layers.append(block(inputs, channels, stride))
                inputs = channels
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self.stages = len(blocks)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class TorchvisionBlock(nn.Module):
    def __init__(self, dim: int, heads: int, mlp: int, names: tuple[str, str]) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(dim, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(dim, eps=1e-6)
        first, second = nn.Linear(dim, mlp), nn.Linear(mlp, dim)
        self.mlp = nn.Sequential(
            OrderedDict([(names[0], first), ("gelu", nn.GELU()), (names[1], second)])
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class TorchvisionEncoder(nn.Module):
    def __init__(self, tokens: int, dim: int, blocks: list[TorchvisionBlock]) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.randn(1, tokens, dim))
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number, block in enumerate(blocks):
            layers[f"encoder_layer_{number}"] = block
        self.layers = nn.Sequential(layers)
        self.ln = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.ln(self.layers(x + self.pos_embedding))
        return out


class TorchvisionViT(nn.Module):
    """`names` are those of the two linear layers: the module's now, or the published files'."""

    def __init__(
        self,
        image: int,
        patch: int,
        depth: int,
        heads: int,
        dim: int,
        mlp: int,
        classes: int = 1000,
        names: tuple[str, str] = ("0", "3"),
    ) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, dim, patch, patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, dim))
        blocks = [TorchvisionBlock(dim, heads, mlp, names) for _ in range(depth)]
        self.encoder = TorchvisionEncoder((image // patch) ** 2 + 1, dim, blocks)
        self.heads = nn.Sequential(OrderedDict([("head", nn.Linear(dim, classes))]))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), patches], 1)
        logits: Tensor = self.heads(self.encoder(tokens)[:, 0])
        return logits


def resnet18() -> TorchvisionResNet:
    return TorchvisionResNet(Basic, (64, 128, 256, 512), (2, 2, 2, 2))


def resnet34() -> TorchvisionResNet:
    return TorchvisionResNet(Basic, (64, 128, 256, 512), (3, 4, 6, 3))


def wide_resnet101_2() -> TorchvisionResNet:
    return TorchvisionResNet(Wide, (256, 512, 1024, 2048), (3, 4, 23, 3))


def vit_b_16() -> TorchvisionViT:
    return TorchvisionViT(224, 16, 12, 12, 768, 3072, names=("linear_1", "linear_2"))


def scramble(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every tensor values that no initialisation has, so that a lost one is seen."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point():
                tensor.fill_(7)
            elif name.endswith("running_var"):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
            else:
                spread = 1.0 if tensor.ndim < 2 else 0.5 / tensor[0].numel() ** 0.5
                noise = torch.randn(tensor.shape, generator=generator)
                tensor.add_(noise, alpha=0.3 * spread)
    return model.eval()
