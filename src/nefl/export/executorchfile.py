"""ExecuTorch programs (.pte) for phones and boards, with XNNPACK's kernels, run by its runtime.

A program takes one example at a time: its memory is planned when it is made. The card and a
checksum follow behind the program, where the runtime does not look.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nefl.artifacts.card import Card, card_from_json, card_to_json
from nefl.artifacts.programfile import seal, unseal
from nefl.artifacts.trainable import is_trainable
from nefl.errors import RunError
from nefl.export.quantize import EXTRA, quantize
from nefl.export.runner import Save
from nefl.extras import need, quiet


class ExecuTorchRunner:
    """A network of an ExecuTorch program, in its runtime."""

    def __init__(self, card: Card, method: Any, program: bytes) -> None:
        self.card = card
        self._method = method
        self._program = program  # the runtime reads it in place and does not keep it alive

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the outputs of a batch of inputs, one after the other."""
        # The runtime's output is overwritten by the next call.
        return torch.cat(
            [self._method.execute([each[None].contiguous()])[0].clone() for each in inputs]
        )


def prepare(network: nn.Module, card: Card, calibration: Tensor) -> Save:
    """Lower the network; return what writes the file, with whatever card.

    Raises:
        ConfigError: if ExecuTorch is not installed.
    """
    with quiet():  # its parts tell each other of kernels that are not for this machine
        exir = need("executorch.exir", EXTRA)
        xnnpack = need("executorch.backends.xnnpack.partition.xnnpack_partitioner", EXTRA)
    example = (calibration[:1].clone(),)
    with quiet():
        plain = quantize(network, calibration) if card.quantized else network
        lowered = exir.to_edge_transform_and_lower(
            torch.export.export(plain, example), partitioner=[xnnpack.XnnpackPartitioner()]
        ).to_executorch()
    program = bytes(lowered.buffer)

    def save(path: Path, final: Card) -> None:
        path.write_bytes(seal(program, card_to_json(final).encode()))

    return save


def open_program(path: Path) -> ExecuTorchRunner:
    """Open a program.

    Raises:
        ConfigError: if ExecuTorch is not installed.
        RunError: if the file is missing, foreign, cut off or damaged.
    """
    runtime = need("executorch.runtime", EXTRA)
    program, text = unseal(path)
    if is_trainable(text):
        raise RunError(
            f"{path}: is a program that trains, and answers nothing; export one to predict with "
            "`nefl export` without --trainable"
        )
    card = card_from_json(text, path)
    try:
        method = runtime.Runtime.get().load_program(program).load_method("forward")
    except Exception as error:  # the runtime raises its own kinds, of no common base
        raise RunError(f"{path}: ExecuTorch does not take it ({error})") from None
    return ExecuTorchRunner(card, method, program)
