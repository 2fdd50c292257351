"""The models for texts, tables and series: they nest in what they mean, and cost what they do."""

import pytest
import torch
from torch import nn

from nefl.config import ModelConfig
from nefl.errors import ConfigError
from nefl.methods import family_of
from nefl.models.table import MODELS, ModelBuilder, find_design
from nefl.nesting.profile import count_macs, profile_family
from nefl.nesting.signature import Signature
from nefl.nesting.spec import SubmodelSpec, build_on_meta
from nefl.nesting.zero_extension import check_family

TEXT = Signature((12,), 5, tokens=17, padding=16)
NEXT = Signature((12,), 17, tokens=17, each_token=True)
CASES = {
    "texts": ("decoder_tiny", TEXT),
    "next token": ("decoder_tiny", NEXT),
    "tables": ("mlp", Signature((7,), 3)),
    "numbers": ("mlp", Signature((7,), 1)),
    "series": ("conv1d", Signature((3, 20), 4)),
}
OTHERS = {
    "decoder_tiny": Signature((3, 32, 32), 10),
    "mlp": TEXT,
    "conv1d": Signature((7,), 3),
    "resnet8": TEXT,
}


def full(model: str, signature: Signature) -> nn.Module:
    return ModelBuilder(model, signature)(SubmodelSpec(find_design(model).full_blocks))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", ["nefl-wd", "nefl-d", "nefl-w", "scalefl-sd", "heterofl"])
def test_members_mean_the_same_at_every_size(case: str, method: str) -> None:
    model, signature = CASES[case]
    family = family_of(ModelConfig(model, method), signature)
    check_family(family, signature.noise(2))
    rows = profile_family(family, signature, 4)
    assert [row.params for row in rows] == sorted({row.params for row in rows})
    outputs = family.build(family.specs[0])(signature.example(2))
    answers = signature.input_shape if signature.each_token else ()
    assert outputs.shape == (2, *answers, signature.outputs)


def test_macs_of_attention_and_linear_layers_by_hand() -> None:
    """Each product of a [m, k] and a [k, n] matrix costs m·k·n."""
    length, outputs = 12, 17
    build = ModelBuilder("decoder_tiny", NEXT)
    dim, heads, head, inner, depth = 64, 4, 16, 192, 5
    of_heads = 4 * length * dim * heads * head  # queries, keys, values, back to the stream
    attention = 2 * heads * length * length * head  # scores, and what is taken by them
    gated = 3 * length * dim * inner
    wanted = depth * (of_heads + attention + gated) + length * dim * outputs
    assert count_macs(build_on_meta(build, SubmodelSpec(build.full_blocks)), NEXT)[1] == wanted


def test_no_token_sees_what_comes_after_it() -> None:
    model = ModelBuilder("decoder_tiny", NEXT)(
        SubmodelSpec(find_design("decoder_tiny").full_blocks)
    )
    tokens = NEXT.noise(1)
    changed = tokens.clone()
    changed[:, 8:] = (changed[:, 8:] + 1) % 17
    with torch.no_grad():
        torch.testing.assert_close(model(tokens)[:, :8], model(changed)[:, :8])
        assert not torch.allclose(model(tokens)[:, 8:], model(changed)[:, 8:])


def test_padding_changes_no_answer() -> None:
    model = ModelBuilder("decoder_tiny", TEXT)(
        SubmodelSpec(find_design("decoder_tiny").full_blocks)
    )
    short = torch.tensor([[1, 2, 3] + [16] * 9])
    with torch.no_grad():
        torch.testing.assert_close(model(short), model(short[:, :7]))


@pytest.mark.parametrize("model", OTHERS)
def test_inputs_of_another_kind_are_refused(model: str) -> None:
    with pytest.raises(ConfigError, match=f"{model} cannot take it"):
        ModelBuilder(model, OTHERS[model])


def test_every_design_can_be_built_as_usual() -> None:
    for name in MODELS:
        with torch.device("meta"):
            assert sum(p.numel() for p in full(name, find_design(name).usual).parameters())
