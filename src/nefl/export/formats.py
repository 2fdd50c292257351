"""The table of formats: how each is written, opened and told from the others."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from nefl.artifacts.card import Card
from nefl.errors import ConfigError, RunError
from nefl.export import (
    adapterfolder,
    executorchfile,
    huggingface,
    onnxfile,
    plainfile,
    torchfile,
)
from nefl.export.runner import Runner, Save, try_out
from nefl.nesting.spec import Builder


@dataclass(frozen=True)
class Format:
    """One kind of file.

    Attributes:
        prepare: translates a plain network (with calibration inputs) into what writes the file.
        open: opens a file in its own runtime.
        suffix: how such files' names usually end; nothing for folders.
        runtime: the module that is imported to run it.
        folded: whether it takes a plain network; otherwise the trained one, as it is.
    """

    prepare: Callable[[nn.Module, Card, Tensor], Save]
    open: Callable[[Path], Runner]
    suffix: str
    runtime: str
    folded: bool = True

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of files."""
        return not self.suffix


FORMATS: dict[str, Format] = {
    "safetensors": Format(plainfile.prepare, plainfile.open_plain, ".safetensors", "safetensors"),
    "onnx": Format(onnxfile.prepare, onnxfile.open_onnx, ".onnx", "onnxruntime"),
    "executorch": Format(
        executorchfile.prepare, executorchfile.open_program, ".pte", "executorch.runtime"
    ),
    "torch-export": Format(torchfile.prepare, torchfile.open_archive, ".pt2", "torch.export"),
    "huggingface": Format(huggingface.prepare, huggingface.open_folder, "", "transformers"),
    "peft": Format(adapterfolder.prepare, adapterfolder.open_folder, "", "peft", folded=False),
}


def find_format(name: str) -> Format:
    """Return a format by name.

    Raises:
        ConfigError: if there is none.
    """
    if name not in FORMATS:
        raise ConfigError(f"format {name!r} is unknown; there are {', '.join(FORMATS)}, elastic")
    return FORMATS[name]


ELASTIC = "elastic"
"""The format of a whole family."""


def format_for(path: Path, given: str | None, *, family: bool) -> str:
    """Return the format that a file is to be written in.

    Args:
        path: the file; the end of its name decides where no format is given.
        given: a name in `FORMATS`, or `elastic`.
        family: whether all submodels may be meant: no single one was asked for.

    Raises:
        ConfigError: if the format is unknown, or not the one of the file's name, or neither says.
    """
    suffixes = {form.suffix: name for name, form in FORMATS.items() if not form.is_folder}
    ending = path.suffix.lower()
    if given is not None:
        expected = ".safetensors" if given == ELASTIC else find_format(given).suffix
        if ending in suffixes and expected and ending != expected:
            raise ConfigError(
                f"{path}: ends in {ending}, but the format {given} is asked for, whose files end "
                f"in {expected}; change one of them"
            )
        return given
    if family and suffixes.get(ending, "safetensors") == "safetensors":
        return ELASTIC
    if ending not in suffixes:
        raise ConfigError(
            f"{path}: its name does not say which format it is to have; end it in "
            f"{', '.join(suffixes)}, or give the format ({', '.join(FORMATS)})"
        )
    return suffixes[ending]


def recognise(path: Path) -> str:
    """Return the name of a file's format, from its first bytes and not from its name.

    Raises:
        RunError: if it is missing or none of the formats.
    """
    if path.is_dir():
        return "peft" if (path / adapterfolder.CONFIG).is_file() else "huggingface"
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None
    if head[:2] == b"PK":
        return "torch-export"
    if head[4:8] == executorchfile.MAGIC:
        return "executorch"
    if head[8:9] == b"{":
        return "safetensors"
    if head[:1] == b"\x08":  # the first field of an ONNX model, its version
        return "onnx"
    raise RunError(
        f"{path}: is no file that nefl knows; expected what `nefl export` wrote "
        f"({', '.join(FORMATS)} or elastic)"
    )


def open_model(path: str | Path, build: Builder | None = None) -> Runner:
    """Open an exported submodel in the runtime that its file is for.

    Args:
        path: the file.
        build: the builder of a model of the user's own, for a safetensors file, which may name no
            code to run.

    Raises:
        ConfigError: if that runtime is not installed.
        RunError: if the file is missing, foreign, cut off, damaged, or not as it describes itself.
    """
    place = Path(path)
    name = recognise(place)
    plain = name == "safetensors"
    runner = plainfile.open_plain(place, build) if plain else FORMATS[name].open(place)
    try_out(place, runner.card, runner)
    return runner
