"""What every format of export offers: something that writes a file, something that runs one."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from nefl.artifacts.card import Card
from nefl.errors import RunError

Save = Callable[[Path, Card], None]
"""Writes a network that has been translated already, with a card, to a path."""


class Runner(Protocol):
    """A network of a file, in the runtime that the file is for."""

    card: Card

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the outputs of a batch of inputs, as the card's signature describes both."""


class TorchRunner:
    """A network that torch itself runs."""

    def __init__(self, card: Card, network: nn.Module) -> None:
        self.card = card
        self._network = network

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the outputs of a batch of inputs, as the card's signature describes both."""
        with torch.inference_mode():
            return self._network(inputs)  # type: ignore[no-any-return]


def try_out(path: Path, card: Card, predict: Callable[[Tensor], Tensor]) -> None:
    """Let a network answer for one empty example, as a card describes its inputs and answers.

    Raises:
        RunError: if it does not take such inputs, or gives other answers, or none that are finite.
    """
    example, wanted = card.signature.example(1), (1, *card.signature.output_shape)
    try:
        with torch.inference_mode():
            outputs = predict(example)
        found = f"{outputs.dtype} {tuple(outputs.shape)}".removeprefix("torch.")
    except Exception as error:  # every runtime raises its own kinds, of no common base
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"{path}: does not take inputs of shape {tuple(example.shape)}, which its description "
            f"names ({reason[:200]}); export it again"
        ) from None
    if outputs.dtype == torch.float32 and not bool(outputs.isfinite().all()):
        raise RunError(
            f"{path}: answers with numbers that are not finite: its weights are damaged, or "
            "training went astray; export another checkpoint"
        )
    if outputs.dtype != torch.float32 or tuple(outputs.shape) != wanted:
        raise RunError(
            f"{path}: answers with {found}, but its description names float32 "
            f"{wanted}; export it again"
        )
