"""One tensor as it travels: float32, bfloat16, or int8 with scales and seeded rounding."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nefl.config import WireFormat
from nefl.errors import UpdateError

DTYPES: dict[WireFormat, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}
"""What the numbers of a tensor travel as."""

LEVELS = 127
"""The largest code of int8: a scale is the largest magnitude divided by it. -128 is no code."""

SHORTEST_ROW = 16
"""Elements from which a row has a scale of its own: its four bytes are then a quarter or less."""


class Coded(NamedTuple):
    """A tensor as it travels.

    Attributes:
        values: its numbers, in its shape.
        scales: what a code of 1 stands for, float32, one for each row or one for all; empty where
            values are no codes.
    """

    values: Tensor
    scales: Tensor


def count_scales(shape: Sequence[int]) -> int:
    """Return how many scales a tensor of that shape has: one for each row, if rows are long."""
    long_rows = len(shape) > 1 and math.prod(shape[1:]) >= SHORTEST_ROW
    return shape[0] if long_rows else 1


def encode(tensor: Tensor, form: WireFormat, scales: int, rng: np.random.Generator) -> Coded:
    """Return a tensor as it travels.

    A number x between two codes becomes the upper one with the probability of its distance from
    the lower one: its mean is x. Zero stays zero. What is not finite stays so, with all its row.

    Args:
        tensor: the tensor, with one element or more.
        form: the format.
        scales: how many scales it has.
        rng: where the rounding of int8 comes from.
    """
    plain = tensor.detach().to("cpu", torch.float32)
    if form != "int8":
        return Coded(plain.to(DTYPES[form]), torch.empty(0))
    rows = plain.reshape(scales, -1)
    scale = rows.abs().amax(1) / LEVELS
    usable = ((scale > 0) & scale.isfinite()).unsqueeze(1)
    steps = torch.where(usable, rows / scale.unsqueeze(1), 0.0)
    chance = torch.from_numpy(rng.random(rows.shape, dtype=np.float32))
    codes = (steps + chance).floor().clamp(-LEVELS, LEVELS).to(torch.int8)
    return Coded(codes.reshape(plain.shape), scale)


def decode(coded: Coded) -> Tensor:
    """Return what a tensor is after it has travelled, in float32."""
    values = coded.values.to(torch.float32)
    if not coded.scales.numel():
        return values
    return (values.reshape(len(coded.scales), -1) * coded.scales.unsqueeze(1)).reshape(values.shape)


def check_codes(name: str, coded: Coded) -> None:
    """Refuse codes and scales that `encode` never makes.

    Raises:
        UpdateError: naming the tensor.
    """
    if bool((coded.scales < 0).any()):
        raise UpdateError(f"{name} has a scale below 0; encode it as nefl.wire does")
    if coded.values.dtype is torch.int8 and bool((coded.values < -LEVELS).any()):
        raise UpdateError(f"{name} has the code {-LEVELS - 1}; there are {-LEVELS} to {LEVELS}")
