"""An adapter of one rank as a folder that `peft` opens over the base."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nefl.artifacts.card import Card
from nefl.artifacts.tensorfile import save_tensors
from nefl.errors import ConfigError, NeflError, RunError
from nefl.export.huggingface import load_causal, read_card, write_card
from nefl.export.runner import Save, TorchRunner
from nefl.extras import quiet
from nefl.files import read_small
from nefl.models.base import FolderBase, need_text
from nefl.models.base import open_folder as open_base_folder
from nefl.models.lora import ADAPTER, Causal, LoraModel

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""What `peft` puts before the names of the base's modules."""


def prepare(network: nn.Module, card: Card, _calibration: Tensor) -> Save:
    """Return what writes the folder, with whatever card.

    Raises:
        ConfigError: if the network has no adapters on a base in a folder.
    """
    if not isinstance(network, LoraModel) or not isinstance(network.source, FolderBase):
        raise ConfigError(
            f"format peft: {card.model} is no adapter on a base in a folder; export it to another"
        )
    if network.cut:
        raise ConfigError(
            "format peft: this member's base is cut short, which such a folder cannot say; take "
            "--format huggingface"
        )
    base = network.source
    tensors = {
        PREFIX + name.removeprefix("base.").replace(f".{ADAPTER}.", "."): tensor
        for name, tensor in network.adapters().items()
    }
    config = need_text("peft").LoraConfig(
        r=network.rank,
        lora_alpha=_whole(network.scaling * network.rank),
        target_modules=list(network.adapted),
        fan_in_fan_out=network.transposed,
        task_type="CAUSAL_LM",
        base_model_name_or_path=str(Path(base.path).absolute()),
        inference_mode=True,
    )

    def save(path: Path, final: Card) -> None:
        with quiet():
            config.save_pretrained(str(path))
        save_tensors(path / WEIGHTS, tensors, {"format": "pt"})
        write_card(path, replace(final, base=base.checksum))  # its settings tell the scaling

    return save


def _whole(alpha: float) -> float:
    """Return alpha as a whole number where it is one, as other tools write it."""
    return int(alpha) if float(alpha).is_integer() else alpha


def open_folder(path: Path) -> TorchRunner:
    """Open a folder with `peft`, over the base that it names.

    Raises:
        ConfigError: if that is not installed.
        RunError: if it is no such folder, or its base is not there or another one.
    """
    card, base = read_card(path), _base_of(path)
    try:
        found = open_base_folder(base).checksum
    except NeflError as error:
        raise RunError(f"{path}: its base cannot be opened: {error}") from None
    if card.base and found != card.base:
        raise RunError(
            f"{path}: was trained on another base ({card.base[:12]}) than {base} holds "
            f"({found[:12]}); put that one back, or name its folder in {CONFIG}"
        )
    if not (path / WEIGHTS).is_file():  # peft would look for a pickle then
        raise RunError(f"{path}: has no {WEIGHTS}; give a folder that `nefl export` wrote")
    peft = need_text("peft")
    try:
        with quiet():
            model: Any = peft.PeftModel.from_pretrained(load_causal(base), str(path))
    except NeflError:
        raise
    except Exception as error:  # whatever the loader stumbles over, the folder is at fault
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(f"{path}: peft does not take it ({reason[:200]})") from None
    network = Causal(model, card.signature.outputs).eval().requires_grad_(False)
    return TorchRunner(card, network)


def _base_of(path: Path) -> Path:
    try:
        named = json.loads(read_small(path / CONFIG)).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise RunError(f"{path}: its {CONFIG} cannot be read ({error})") from None
    if not isinstance(named, str) or not Path(named).is_dir():
        raise RunError(
            f"{path}: its base, {named!r:.80}, is no folder here; name one as "
            f"base_model_name_or_path in {CONFIG}"
        )
    return Path(named)
