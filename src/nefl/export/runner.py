"""What every format of export offers: something that writes a file, something that runs one."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from nefl.artifacts.card import Card

Save = Callable[[Path, Card], None]
"""Writes a network that has been translated already, with a card, to a path."""


class Runner(Protocol):
    """A network of a file, in the runtime that the file is for."""

    card: Card

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the logits of float32 inputs [N, C, H, W]."""


class TorchRunner:
    """A network that torch itself runs."""

    def __init__(self, card: Card, network: nn.Module) -> None:
        self.card = card
        self._network = network

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the logits of float32 inputs [N, C, H, W]."""
        with torch.inference_mode():
            return self._network(inputs)  # type: ignore[no-any-return]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the translators' advice to their developers from users."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
