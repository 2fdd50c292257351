"""Tensors and orders on their way."""

import json

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import assume, given
from hypothesis import strategies as st

from nefl import TrainTask, UpdateError, make_family
from nefl.artifacts.checkpoint import state_sha256
from nefl.engines.flower.messages import (
    FORMAT,
    ORDER,
    WEIGHTS,
    Order,
    arrays_to_state,
    from_arrays,
    order_record,
    read_order,
    state_to_arrays,
    to_arrays,
)
from nefl.nesting.spec import TensorInfo

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 1, 4)])
def test_tensors_arrive_as_they_were(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 9).to(dtype)
    layout = {"a": TensorInfo(shape, dtype)}
    back = from_arrays(to_arrays({"a": tensor}), layout)["a"]
    assert back.dtype is dtype
    assert torch.equal(back, tensor)


def test_views_and_other_strides_too() -> None:
    whole = torch.rand(4, 5, 3, 3).contiguous(memory_format=torch.channels_last)
    corner = whole[:2, :3]
    layout = {"a": TensorInfo((2, 3, 3, 3), torch.float32)}
    assert torch.equal(from_arrays(to_arrays({"a": corner}), layout)["a"], corner)


def test_tied_weights_arrive_too() -> None:
    tied = torch.rand(3, 2)
    layout = {name: TensorInfo((3, 2), torch.float32) for name in ("a", "b")}
    back = from_arrays(to_arrays({"a": tied, "b": tied}), layout)
    assert torch.equal(back["a"], tied)
    assert torch.equal(back["b"], tied)


def test_a_state_arrives_as_it_was() -> None:
    family = make_family("resnet8", "nefl-wd", input_shape=(1, 8, 8))
    state = family.initial_state(3)
    back = arrays_to_state(state_to_arrays(state), family, 0)
    assert state_sha256(back) == state_sha256(state)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(UpdateError, match="its weights"):
        from_arrays(packed(data), {"a": TensorInfo((3,), torch.float32)})


SIZES = st.integers(0, 4) | st.integers(0, 2**64)
DTYPE_NAMES = ["F32", "F64", "BF16", "F4", "F8_E8M0", "BOOL", "U64", "C64", "F99", ""]


@given(st.text(max_size=2), st.lists(SIZES, max_size=4), st.sampled_from(DTYPE_NAMES), SIZES)
def test_any_header_is_refused(name: str, shape: list[int], dtype: str, end: int) -> None:
    """However absurd, the answer is the one error that costs this update and no more."""
    assume((name, shape, dtype) != ("a", [3], "F32"))
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}
    head = json.dumps({name: entry}).encode()
    data = len(head).to_bytes(8, "little") + head + b"\0" * min(end, 100)
    with pytest.raises(UpdateError):
        from_arrays(packed(data), {"a": TensorInfo((3,), torch.float32)})


def packed(data: bytes) -> ArrayRecord:
    return ArrayRecord({WEIGHTS: Array("uint8", (len(data),), FORMAT, data)})


def test_orders_arrive_as_they_were() -> None:
    order = Order(TrainTask(3, 4, 2), "f" * 64, "server", 4, (10, 20), {"config": {"seed": 1}})
    assert read_order(RecordDict({ORDER: order_record(order)})) == order
    with pytest.raises(UpdateError, match="nefl-order"):
        read_order(RecordDict())
    with pytest.raises(UpdateError, match="nefl-order"):
        read_order(RecordDict({ORDER: ConfigRecord({"order": "{}"})}))
