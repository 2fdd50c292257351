"""Static norms keep what they measured, wherever they go."""

import torch
from torch import nn

from nefl.nesting.modules import StaticBatchNorm2d, measuring_norms


def measured_norm() -> StaticBatchNorm2d:
    norm = StaticBatchNorm2d(3)
    images = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)) * 2 + 1
    with torch.no_grad(), measuring_norms(norm.eval()):
        norm(images)
    return norm


def test_what_was_measured_moves_with_the_module() -> None:
    norm = measured_norm()
    double = norm.double()
    assert double.measured is not None
    assert [tensor.dtype for tensor in double.measured] == [torch.float64] * 2
    moved = nn.Sequential(measured_norm()).to("meta")[0]
    assert isinstance(moved, StaticBatchNorm2d)
    assert moved.measured is not None
    assert all(tensor.is_meta for tensor in moved.measured)
    assert moved(torch.zeros(1, 3, 2, 2, device="meta")).is_meta


def test_what_was_measured_is_no_part_of_the_weights() -> None:
    fresh, measured = StaticBatchNorm2d(3), measured_norm()
    assert list(measured.state_dict()) == list(fresh.state_dict()) == ["weight", "bias"]
    assert not list(fresh.named_buffers())
    measured.measured = None
    images = torch.randn(2, 3, 4, 4)
    assert torch.equal(measured.eval()(images), fresh.eval()(images))
