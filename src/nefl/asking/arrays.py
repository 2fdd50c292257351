"""Arrays of numbers as a user gives them: JSON, `.npy` or `.npz`, never unpickled."""

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nefl.artifacts.card import Card
from nefl.asking.way import (
    MAX_FILE,
    MAX_ROWS,
    Answer,
    Answers,
    Light,
    Run,
    Wish,
    bounded,
    check_scales,
    misfit,
    read_json,
    run_in_parts,
    tell_classes,
    tell_numbers,
)
from nefl.errors import DataError
from nefl.nesting.signature import Signature

FORMS = "JSON, .npy or .npz"

MAX_TOLD = 1_000_000
"""Numbers of raw outputs in one answer."""

_NPY, _ZIP = b"\x93NUMPY", b"PK"
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True)
class SeriesFacts:
    """What a card says of series: mean and deviation of channels, and of numbers to foretell."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    target_mean: float = 0.0
    target_std: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what no series has."""
        check_scales(
            (*self.mean, self.target_mean), (*self.std, self.target_std), len(self.mean) + 1
        )


class Series(Light):
    """Asked about series of numbers, it says their class, or a number."""

    noun = "series"
    takes = f"an array of channels and steps, or several: {FORMS}"

    def __init__(self, card: Card, facts: SeriesFacts) -> None:
        shape = card.signature.input_shape
        if len(shape) != 2 or len(facts.mean) != shape[0] or card.signature.tokens:
            raise misfit(card, f"{len(facts.mean)} means for inputs {card.signature.shown}")
        if not card.class_names and card.signature.outputs != 1:
            raise misfit(card, f"{card.signature.outputs} outputs without names")
        self._card, self._facts = card, facts
        self._mean, self._std = (
            torch.tensor(each, dtype=torch.float32)[:, None] for each in (facts.mean, facts.std)
        )
        self.example = example_array(card.signature)

    def ask(self, data: bytes, where: str, run: Run, wish: Wish, *, is_json: bool) -> Answers:  # noqa: ARG002
        """Say what series are, or what follows from them."""
        inputs, several = read_inputs(data, where, self._card.signature)
        outputs = run_in_parts(run, finite((inputs - self._mean) / self._std, where))
        facts, names = self._facts, self._card.class_names
        if names:
            return Answers(tuple(tell_classes(outputs, names)), several)
        return Answers(tuple(tell_numbers(outputs, facts.target_mean, facts.target_std)), several)


class Arrays(Light):
    """Asked about arrays of the network's own shape, it gives the network's outputs as they are."""

    noun = "array"

    def __init__(self, card: Card) -> None:
        self._signature = card.signature
        what = "tokens" if card.signature.tokens else "numbers"
        self.takes = f"an array of {what} {card.signature.shown}, or several: {FORMS}"
        self.example = example_array(card.signature)

    def ask(self, data: bytes, where: str, run: Run, wish: Wish, *, is_json: bool) -> Answers:  # noqa: ARG002
        """Return the outputs for each array."""
        inputs, several = read_inputs(data, where, self._signature)
        most = MAX_TOLD // prod(self._signature.output_shape)
        if len(inputs) > max(1, most):
            raise DataError(
                f"{where}: {len(inputs)} arrays would give more than {MAX_TOLD} numbers; ask for "
                f"{max(1, most)} at once"
            )
        outputs = run_in_parts(run, finite(inputs, where)).tolist()
        told = (Answer(_shown(each), {"outputs": each}) for each in outputs)
        return Answers(tuple(told), several)


def _shown(outputs: Sequence[Any]) -> str:
    flat = np.asarray(outputs).ravel()
    listed = ", ".join(f"{value:.4g}" for value in flat[:8])
    return f"[{listed}{', …' if len(flat) > 8 else ''}]"


def example_array(signature: Signature) -> str:
    """Return zeros of a signature's shape as JSON, where that is not too long."""
    return str(signature.example(1)[0].tolist()) if signature.numel <= 256 else ""


def finite(inputs: Tensor, where: str) -> Tensor:
    """Return inputs that a network can take.

    Raises:
        DataError: if a number is none, or too large for float32.
    """
    if not bool(inputs.isfinite().all()):
        raise DataError(f"{where}: has a number that is not finite, or too large; give others")
    return inputs


def read_inputs(data: bytes, where: str, signature: Signature) -> tuple[Tensor, bool]:
    """Read an array, or several, of the shape that a network takes.

    A single channel may be left out.

    Returns:
        A batch of inputs, and whether the array had an axis for it.

    Raises:
        DataError: if it is none, or of another shape.
    """
    array = read_array(data, where)
    shape = signature.input_shape
    short = shape[1:] if len(shape) == 2 and shape[0] == 1 else shape
    if array.shape in (shape, short):
        found, several = array.reshape(1, *shape), False
    elif array.shape[1:] in (shape, short) and len(array):
        found, several = array.reshape(-1, *shape), True
    else:
        raise DataError(f"{where}: is an array {array.shape}, expected {shape} or several of them")
    if len(found) > MAX_ROWS:
        raise DataError(f"{where}: has {len(found)} arrays, at most {MAX_ROWS} are taken at once")
    with np.errstate(invalid="ignore", over="ignore"):  # looked at below, and by `finite`
        if not signature.tokens:
            return torch.from_numpy(found.astype(np.float32)), several
        whole = found.astype(np.int64)
    if (whole != found).any() or whole.min() < 0 or whole.max() >= signature.tokens:
        raise DataError(
            f"{where}: has numbers that are no tokens; give whole ones, 0 to {signature.tokens - 1}"
        )
    return torch.from_numpy(whole), several


def read_array(data: bytes, where: str) -> npt.NDArray[Any]:
    """Read one array of numbers.

    Raises:
        DataError: if it is none.
    """
    if data[:2] == _ZIP:
        data = _only_member(data, where)
    if data[: len(_NPY)] == _NPY:
        return _read_npy(data, where)
    content = read_json(data, where)
    try:
        array = np.asarray(content)
    except (ValueError, OverflowError) as error:  # rows of unequal length, numbers of many digits
        raise DataError(f"{where}: is no array ({error})") from None
    return _numbers(array, where)


def _numbers(array: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    if array.dtype.kind not in "fiub" or not array.size:
        raise DataError(f"{where}: is {array.dtype} of shape {array.shape}; expected numbers")
    return array


def _read_npy(data: bytes, where: str) -> npt.NDArray[Any]:
    """Read a `.npy` file: its header is compared with its bytes before an array is made."""
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        shape, by_column, dtype = _HEADERS[version](stream)
        rest = data[stream.tell() :]
        array = np.frombuffer(rest, dtype).reshape(shape, order="F" if by_column else "C")
    except Exception as error:  # a damaged header fails in a dozen ways
        raise DataError(f"{where}: is no .npy file of plain numbers ({error})") from None
    return _numbers(array, where)


def _only_member(data: bytes, where: str) -> bytes:
    """Return the one array of a `.npz` file, or that called `x`."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            name = names[0] if len(names) == 1 else "x.npy"
            with archive.open(name) as file:
                unpacked = file.read(MAX_FILE + 1)
    except Exception as error:  # a damaged archive fails in a dozen ways
        raise DataError(
            f"{where}: is no .npz file of one array, or of one called x ({error})"
        ) from None
    return bounded(unpacked, f"{where}, unpacked,")
