"""torch.export archives (.pt2), run by torch.

Such an archive can hold pickles, which run code when they are loaded. nefl writes none, and refuses
any archive that has one before torch sees it.
"""

import io
import json
import zipfile
from pathlib import Path

import torch
from torch import Tensor, nn

from nefl.artifacts.card import CARD_KEY, Card, card_from_json, card_to_json
from nefl.errors import RunError
from nefl.export.quantize import EXTRA, quantize
from nefl.export.runner import Save, TorchRunner, quiet
from nefl.extras import need

# The one stored pickle, of sample inputs, is left out: then its entry is empty.
_SAMPLES = "data/sample_inputs/"
_PAYLOADS = ("data/weights/", "data/constants/")
_OTHERS = ("models/", "extra/", ".data/", "archive_format", "archive_version", "byteorder")


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
        path.write_bytes(buffer.getvalue())

    return save


def open_archive(path: Path) -> TorchRunner:
    """Open an archive.

    Raises:
        RunError: if the file is missing, foreign, cut off, damaged, or holds a pickle.
    """
    try:
        data = path.read_bytes()
        card = card_from_json(_check(path, data), path)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError) as error:
        raise RunError(f"{path}: is no torch.export archive, or damaged ({error})") from None
    if card.quantized:
        need("torchao.quantization.pt2e.quantize_pt2e", EXTRA)  # it brings the int8 operators
    try:
        with quiet():
            network = torch.export.load(io.BytesIO(data)).module()
    except Exception as error:  # whatever the loader stumbles over, the file is at fault
        raise RunError(f"{path}: torch does not take it ({error})") from None
    return TorchRunner(card, network)


def _check(path: Path, data: bytes) -> str | None:
    """Refuse an archive with pickles or checksums that do not fit; return its card."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        broken = archive.testzip()
        if broken:
            raise RunError(f"{path}: is damaged: {broken} does not have its checksum")
        card = None
        for entry in archive.infolist():
            name = entry.filename.partition("/")[2]  # the first folder is named after the file
            if name == f"extra/{CARD_KEY}":
                card = archive.read(entry).decode()
            elif name.startswith(_SAMPLES):
                _refuse(path, name, unsafe=entry.file_size > 0)
            elif name.startswith(_PAYLOADS) and name.endswith(".json"):
                stored = json.loads(archive.read(entry))["config"].values()
                _refuse(path, name, unsafe=any(part["use_pickle"] for part in stored))
            elif name.startswith(_PAYLOADS):
                raw = name.rpartition("/")[2].startswith(("weight_", "tensor_"))
                _refuse(path, name, unsafe=not raw)
            else:
                _refuse(path, name, unsafe=not name.startswith(_OTHERS))
        return card


def _refuse(path: Path, name: str, *, unsafe: bool) -> None:
    if unsafe:
        raise RunError(
            f"{path}: {name} may be a pickle, which runs code when it is loaded; nefl writes "
            "none, so this file is not from `nefl export`"
        )
