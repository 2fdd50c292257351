"""A causal language model as a folder that `transformers` opens: settings, weights, tokenizer.

A member of nefl's decoder is an ordinary Llama: heads side by side in one matrix, step sizes gone
into the maps before them, the blocks that it keeps numbered anew. A base with adapters is what it
was, the adapters added to its weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nefl.artifacts.card import Card, card_from_json, card_to_json
from nefl.errors import ConfigError, RunError
from nefl.export.runner import Save, TorchRunner, quiet
from nefl.files import read_small
from nefl.models.base import need_text
from nefl.models.decoder import EPSILON, ROTARY_BASE
from nefl.models.lora import Causal

CARD = "nefl.json"
"""The file in which a folder says what nefl needs to know of it."""

TOKENIZER = "tokenizer.json"
LENGTHS = 8
"""How many times the training's length a text may have by the settings; positions are relative."""


def prepare(network: nn.Module, card: Card, _calibration: Tensor) -> Save:
    """Return what writes the folder, with whatever card.

    Raises:
        ConfigError: if the network is no causal language model.
    """
    model = network.model if isinstance(network, Causal) else _as_llama(network, card)
    assert isinstance(model, nn.Module)  # noqa: S101 -- both are

    def save(path: Path, final: Card) -> None:
        with quiet():
            need_text("transformers").utils.logging.disable_progress_bar()
            model.save_pretrained(path)  # type: ignore[operator]
        write_card(path, final)

    return save


def write_card(path: Path, card: Card) -> None:
    """Write what a folder says of itself, and its tokenizer where it has one."""
    (path / CARD).write_text(card_to_json(card), encoding="utf-8")
    tokenizer = card.facts.get("tokenizer", "")
    if isinstance(tokenizer, str) and tokenizer.startswith("{"):
        (path / TOKENIZER).write_text(tokenizer, encoding="utf-8")


def read_card(path: Path) -> Card:
    """Read what a folder says of itself.

    Raises:
        RunError: if it says nothing.
    """
    try:
        text = read_small(path / CARD)
    except OSError as error:
        raise RunError(
            f"{path}: has no {CARD} that can be read ({error.strerror}); give a folder that "
            "`nefl export` wrote"
        ) from None
    return card_from_json(text, path)


def open_folder(path: Path) -> TorchRunner:
    """Open a folder with `transformers`.

    Raises:
        ConfigError: if that is not installed.
        RunError: if it is no such folder, or damaged.
    """
    card = read_card(path)
    return TorchRunner(card, Causal(load_causal(path), card.signature.outputs).eval())


def load_causal(path: Path) -> nn.Module:
    """Load a model of `transformers` from a local folder; no code that it may name is run.

    Raises:
        RunError: if it cannot be loaded.
    """
    transformers = need_text("transformers")
    transformers.utils.logging.disable_progress_bar()
    try:
        with quiet():
            model: nn.Module = transformers.AutoModelForCausalLM.from_pretrained(
                str(path), local_files_only=True, use_safetensors=True
            )
    except Exception as error:  # whatever the loader stumbles over, the folder is at fault
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(f"{path}: transformers does not take it ({reason[:200]})") from None
    return model.eval().requires_grad_(False)


def _as_llama(network: nn.Module, card: Card) -> nn.Module:
    """Return an exported decoder as a Llama of `transformers`."""
    tensors = dict(network.state_dict())
    signature = card.signature
    if "model.embed_tokens.weight" not in tensors or not signature.each_token:
        raise ConfigError(
            f"format huggingface: {card.model} is no model for the next token; export it to another"
        )
    if "lm_head.weight" not in tensors or any("step_size" in name for name in tensors):
        raise ConfigError(
            f"format huggingface: {card.model} under {card.method} ends in an early exit or keeps "
            "step sizes, and a Llama has neither; export it to another format"
        )
    named = _renamed(tensors)
    sizes = _settings(named, tensors, card)
    transformers = need_text("transformers")
    # Llama's settings want the heads to divide the stream. Without a window, Mistral's network is
    # the same, and its settings do not mind.
    kind = "Mistral" if sizes["hidden_size"] % sizes["num_attention_heads"] else "Llama"
    if kind == "Mistral":
        sizes["sliding_window"] = None
    config = getattr(transformers, f"{kind}Config")(**sizes)
    model: nn.Module = getattr(transformers, f"{kind}ForCausalLM")(config)
    model.load_state_dict(named)
    return model.eval().requires_grad_(False)


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Number the kept blocks anew, and put heads side by side."""
    numbers = sorted({int(n.split(".")[2]) for n in tensors if n.startswith("model.layers.")})
    places = {str(number): str(place) for place, number in enumerate(numbers)}
    named = {}
    for name, tensor in tensors.items():
        parts = name.split(".")
        if name.startswith("model.layers."):
            parts[2] = places[parts[2]]
        if parts[-2] in ("q_proj", "k_proj", "v_proj"):
            tensor = tensor.flatten(0, 1)
        elif parts[-2] == "o_proj":
            tensor = tensor.flatten(1)
        named[".".join(parts)] = tensor.contiguous()
    return named


def _settings(
    named: Mapping[str, Tensor], tensors: Mapping[str, Tensor], card: Card
) -> dict[str, Any]:
    queries = [t for n, t in tensors.items() if n.endswith(".q_proj.weight")]
    inner = [t for n, t in named.items() if n.endswith(".up_proj.weight")]
    if len({t.shape for t in queries}) != 1 or len({t.shape for t in inner}) != 1:
        raise ConfigError(
            f"format huggingface: the blocks of submodel {card.submodels[0].number} have different "
            "widths, and a Llama's are alike; export it to another format"
        )
    heads, head_dim, dim = queries[0].shape
    return {
        "vocab_size": card.signature.tokens,
        "hidden_size": dim,
        "intermediate_size": inner[0].shape[0],
        "num_hidden_layers": len(queries),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": head_dim,
        "rms_norm_eps": EPSILON,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROTARY_BASE},
        "max_position_embeddings": LENGTHS * card.signature.input_shape[0],
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }
