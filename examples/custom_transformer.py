"""A transformer described by a config, scaled by heads and layers.

Models of the Hugging Face kind are built from a config with `hidden_size`, `num_hidden_layers`
and so on. Scaling the config is all it takes, as long as corners stay corners: queries, keys and
values must not be fused into one matrix, and a narrower model keeps whole leading heads.

    python examples/custom_transformer.py
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nefl import Family, NestingError, SubmodelSpec, check_family
from nefl.nesting.coverage import expected_coverage
from nefl.nesting.spec import kept_channels
from nefl.nesting.tiers import submodel_probabilities


@dataclass(frozen=True)
class TextConfig:
    """What describes the model, in the words that Hugging Face uses."""

    vocab_size: int = 100
    head_size: int = 8
    num_attention_heads: int = 8
    num_hidden_layers: int = 4
    intermediate_size: int = 256
    num_labels: int = 3

    @property
    def hidden_size(self) -> int:
        """Channels of the stream: whole heads."""
        return self.head_size * self.num_attention_heads


class Layer(nn.Module):
    """Self-attention with separate projections, then a feed-forward network."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        size, self.heads = config.hidden_size, config.num_attention_heads
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        self.output = nn.Linear(size, size)
        self.up = nn.Linear(size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, size)
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream after both residual sums."""
        y = self.norm1(x)
        query, key, value = (
            part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.down(torch.relu(self.up(self.norm2(x))))  # type: ignore[no-any-return]


class TextModel(nn.Module):
    """Embeddings, layers, a classifier on the mean token."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        x = self.embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.classifier(x.mean(1))  # type: ignore[no-any-return]


def scaled(spec: SubmodelSpec) -> TextConfig:
    """Return the config of a spec: leading heads, leading layers."""
    whole, width = TextConfig(), spec.stage_width(0)
    return replace(
        whole,
        num_attention_heads=kept_channels(whole.num_attention_heads, width),
        intermediate_size=kept_channels(whole.intermediate_size, width),
        num_hidden_layers=sum(step > 0 for step in spec.blocks[0]),
    )


def build(spec: SubmodelSpec) -> nn.Module:
    """Build the module of a spec."""
    return TextModel(scaled(spec))


class FusedModel(nn.Module):
    """The same around torch's own layer, which keeps queries, keys and values in one matrix."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.embeddings = nn.Embedding(config.vocab_size, size)
        self.layer = nn.TransformerEncoderLayer(
            size, config.num_attention_heads, config.intermediate_size, batch_first=True
        )
        self.classifier = nn.Linear(size, config.num_labels)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        return self.classifier(self.layer(self.embeddings(tokens)).mean(1))  # type: ignore[no-any-return]


def build_fused(spec: SubmodelSpec) -> nn.Module:
    """Build it: all names and shapes are right, and a narrow model's values are the full's keys."""
    return FusedModel(scaled(spec))


def main() -> None:
    """Make the family, run and check its members, see a round's coverage and a refusal."""
    specs = (
        SubmodelSpec(((1.0, 1.0, 0.0, 0.0),), width=0.5),
        SubmodelSpec(((1.0, 1.0, 1.0, 0.0),), width=0.75),
        SubmodelSpec(((1.0, 1.0, 1.0, 1.0),)),
    )
    family = Family(build, specs)
    tokens = torch.randint(100, (2, 12))
    for number, spec in enumerate(specs, start=1):
        logits = build(spec)(tokens)
        size = sum(info.numel for info in family.layout(number).values())
        print(f"submodel {number}: {size} parameters, logits {tuple(logits.shape)}")
    covered = expected_coverage(family, 10, submodel_probabilities([1, 1, 1], 3))
    print(
        f"of 10 clients {covered.mean:.1f} train an element in a round, "
        f"the outermost ones {covered.minimum:.1f}"
    )
    check_family(family, tokens)  # what `nefl train` does before a model of yours is trained
    fused = Family(build_fused, (SubmodelSpec(((1.0,),), width=0.5), SubmodelSpec(((1.0,),))))
    try:
        check_family(fused, tokens)
    except NestingError as error:
        print(f"refused, as it should be: {error}")


if __name__ == "__main__":
    main()
