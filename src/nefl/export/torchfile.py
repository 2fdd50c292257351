"""torch.export archives (.pt2), run by torch; see `archive` for what of a file reaches it."""

import io
from pathlib import Path

import torch
from torch import Tensor, nn

from nefl.artifacts.card import CARD_KEY, Card, card_from_json, card_to_json
from nefl.errors import RunError
from nefl.export.archive import ArchiveError, rebuild
from nefl.export.operators import guard
from nefl.export.quantize import EXTRA, quantize
from nefl.export.runner import Save, TorchRunner
from nefl.extras import need, quiet


def prepare(network: nn.Module, card: Card, calibration: Tensor) -> Save:
    """Export the network; return what writes the file, with whatever card."""
    batch = torch.export.Dim("batch", min=1, max=2**16)
    with quiet():
        plain = quantize(network, calibration) if card.quantized else network
        program = torch.export.export(
            plain, (calibration[:2].clone(),), dynamic_shapes=({0: batch},)
        )
    program.example_inputs = None

    def save(path: Path, final: Card) -> None:
        buffer = io.BytesIO()
        with quiet():
            torch.export.save(program, buffer, extra_files={CARD_KEY: card_to_json(final)})
        try:
            # Traces of where each operator came from are left out too: they name this machine.
            path.write_bytes(rebuild(buffer.getvalue())[1])
        except ArchiveError as error:
            raise RunError(f"the network cannot be taken to a .pt2 archive: it {error}") from None

    return save


def open_archive(path: Path) -> TorchRunner:
    """Open an archive.

    Raises:
        RunError: if the file is missing, foreign, cut off, damaged, or holds what could run.
    """
    try:
        text, data = rebuild(path.read_bytes())
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None
    except ArchiveError as error:
        raise RunError(f"{path}: {error}") from None
    card = card_from_json(text, path)
    if card.quantized:
        need("torchao.quantization.pt2e.quantize_pt2e", EXTRA)  # it brings the int8 operators
    try:
        with quiet():
            network = torch.export.load(io.BytesIO(data)).module()
            guard(network)
    except Exception as error:  # whatever the loader stumbles over, the file is at fault
        raise RunError(f"{path}: torch does not take it ({error})") from None
    return TorchRunner(card, network)
