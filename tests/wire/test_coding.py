"""One tensor on the wire: unbiased, as a brute-force twin has it, and nothing lost that counts."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from nefl.errors import UpdateError
from nefl.wire.coding import Coded, check_codes, count_scales, decode, encode

SHAPE = (3, 20)


def example() -> Tensor:
    tensor = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    tensor[1] *= 1e-3
    tensor[2] = 0
    return tensor


def by_hand(tensor: Tensor, rows: int, rng: np.random.Generator) -> tuple[list[int], list[float]]:
    """Return codes and scales, one number at a time."""
    chances = rng.random(tensor.numel(), dtype=np.float32)
    length = tensor.numel() // rows
    values, codes, scales = tensor.reshape(-1).tolist(), [], []
    for row in range(rows):
        part = values[row * length : (row + 1) * length]
        scale = float(np.float32(max(map(abs, part))) / np.float32(127))
        scales.append(scale)
        for place, value in enumerate(part):
            exact = value / scale if scale else 0.0
            lower = math.floor(exact)
            up = float(chances[row * length + place]) >= 1 - (exact - lower)
            codes.append(max(-127, min(127, lower + up)))
    return codes, scales


@pytest.mark.parametrize("rows", [1, 3])
def test_int8_is_what_the_twin_makes(rows: int) -> None:
    tensor = example()
    coded = encode(tensor, "int8", rows, np.random.default_rng(7))
    codes, scales = by_hand(tensor, rows, np.random.default_rng(7))
    assert coded.values.dtype is torch.int8
    assert coded.values.reshape(-1).tolist() == codes
    assert coded.scales.tolist() == scales
    wanted = [c * scales[i * rows // tensor.numel()] for i, c in enumerate(codes)]
    assert decode(coded).reshape(-1).tolist() == pytest.approx(wanted)


def test_int8_is_right_on_average_and_never_further_off_than_a_code() -> None:
    tensor, draws = example(), 3000
    rng = np.random.default_rng(3)
    total = torch.zeros(SHAPE, dtype=torch.float64)
    for _ in range(draws):
        coded = encode(tensor, "int8", 3, rng)
        found = decode(coded).double()
        assert ((found - tensor).abs() <= coded.scales.unsqueeze(1) * 1.0001).all()
        total += found
    # The deviation of a rounding is at most half a code.
    most = 5 * 0.5 * coded.scales.unsqueeze(1) / math.sqrt(draws)
    assert ((total / draws - tensor).abs() <= most).all()
    nearest = (tensor / coded.scales.unsqueeze(1)).round() * coded.scales.unsqueeze(1)
    assert ((nearest - tensor).abs() > most)[:2].any(), "rounding to the nearest would be seen"


def test_bfloat16_is_the_nearest() -> None:
    tensor = example()
    found = decode(encode(tensor, "bfloat16", 3, np.random.default_rng(0)))
    bits = tensor.numpy().view(np.uint32).astype(np.uint64)
    nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32)
    assert np.array_equal(found.numpy().view(np.uint32), nearest)


@pytest.mark.parametrize("form", ["bfloat16", "int8"])
def test_zeros_stay_and_what_is_not_finite_does_not_hide(form: str) -> None:
    tensor = torch.zeros(4, 20)
    tensor[1, 3], tensor[2, 5], tensor[3] = math.inf, math.nan, 1e-45
    found = decode(encode(tensor, form, 4, np.random.default_rng(0)))  # type: ignore[arg-type]
    assert (found[0] == 0).all()
    assert not found[1].isfinite().all()
    assert not found[2].isfinite().all()
    assert found[3].abs().max() <= 1e-44


def test_rows_have_scales_where_they_are_long() -> None:
    shapes = {(64, 3, 3, 3): 64, (10, 16): 10, (10, 15): 1, (500,): 1, (2, 2): 1}
    assert {shape: count_scales(shape) for shape in shapes} == shapes


def test_codes_that_nobody_makes_are_refused_by_name() -> None:
    good = encode(example(), "int8", 3, np.random.default_rng(0))
    check_codes("w", good)
    code = good.values.clone()
    code[1, 1] = -128
    with pytest.raises(UpdateError, match="w has the code -128"):
        check_codes("w", Coded(code, good.scales))
    with pytest.raises(UpdateError, match="w has a scale below 0"):
        check_codes("w", Coded(good.values, -good.scales))
