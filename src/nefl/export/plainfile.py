"""A plain network in a safetensors file: its tensors, and the card it can be rebuilt from."""

from pathlib import Path

import torch
from torch import Tensor, nn

from nefl.artifacts.card import CARD_KEY, Card, card_to_json
from nefl.artifacts.checkpoint import check_layout
from nefl.artifacts.tensorfile import save_tensors
from nefl.elastic.file import checksum, read_checked
from nefl.errors import ConfigError, NeflError, RunError
from nefl.export.fold import fold
from nefl.export.runner import Save, TorchRunner
from nefl.methods import networks_of
from nefl.models.table import MODELS, ModelBuilder
from nefl.nesting.spec import Builder, TensorInfo, build_on_meta

FORMAT = "nefl-submodel-1"
SCALE = ".int8_scale"
"""Ends the name of the factors, one for each row, by which an int8 tensor is multiplied."""


def prepare(network: nn.Module, card: Card, _calibration: Tensor) -> Save:
    """Return what writes the file, with whatever card.

    Raises:
        ConfigError: if the network has adapters, whose base no such file holds.
    """
    if card.base:
        raise ConfigError(
            f"format safetensors: {card.model} is an adapter on a base; take --format peft for the "
            "adapter or --format huggingface for both in one, or export all ranks (no --submodel)"
        )
    tensors = {n: t.detach().contiguous() for n, t in network.state_dict().items()}
    if card.quantized:
        tensors = quantize_weights(tensors)

    def save(path: Path, final: Card) -> None:
        text = card_to_json(final)
        metadata = {"format": FORMAT, CARD_KEY: text, "sha256": checksum(tensors, text)}
        save_tensors(path, tensors, metadata)

    return save


def open_plain(path: Path, build: Builder | None = None) -> TorchRunner:
    """Rebuild the network of a file.

    Args:
        path: the file.
        build: the builder of a user's own model, which no file may name code for.

    Raises:
        RunError: if the file is missing, foreign, cut off, damaged or another model's.
    """
    card, stored = read_checked(path, FORMAT)
    spec = card.submodels[0].spec
    try:
        network = fold(build_on_meta(build or _builder(card), spec)).network
    except NeflError as error:
        raise RunError(f"{path}: its network cannot be built: {error}") from None
    try:
        tensors = dequantize_weights(stored)
    except RuntimeError as error:
        raise RunError(f"{path}: its int8 weights have scales of another shape ({error})") from None
    state = network.state_dict()
    check_layout(path, tensors, {n: TensorInfo(tuple(t.shape), t.dtype) for n, t in state.items()})
    network.load_state_dict(tensors, assign=True)
    return TorchRunner(card, network.eval().requires_grad_(False))


def _builder(card: Card) -> ModelBuilder:
    if card.model not in MODELS:
        raise RunError(
            f"{card.model!r} is no model of nefl's own, and a file may not name code to run; "
            "export it to ONNX, or give its builder: nefl.open_model(file, build)"
        )
    method = networks_of(card.networks or card.method)
    return ModelBuilder(card.model, card.signature, method.norm, method.learned_steps)


def quantize_weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Store weights as int8 with a scale for each row; vectors stay float32.

    Only the file gets smaller: weights are turned back into float32 when it is opened.
    """
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim < 2 or not tensor.is_floating_point():
            result[name] = tensor
            continue
        largest = tensor.abs().flatten(1).amax(1)
        scale = torch.where(largest > 0, largest / 127, torch.ones_like(largest))
        rows = scale.reshape(-1, *[1] * (tensor.ndim - 1))
        result[name] = (tensor / rows).round().clamp(-127, 127).to(torch.int8)
        result[name + SCALE] = scale
    return result


def dequantize_weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Undo `quantize_weights`, up to rounding."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(SCALE):
            continue
        scale = tensors.get(name + SCALE)
        if scale is not None:
            tensor = tensor.float() * scale.reshape(-1, *[1] * (tensor.ndim - 1))
        result[name] = tensor
    return result
