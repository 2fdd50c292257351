"""Tensors and orders on their way."""

import pytest
import torch
from flwr.app import Array, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from nefl import TrainTask, UpdateError, make_family
from nefl.artifacts.checkpoint import state_sha256
from nefl.engines.flower.messages import (
    ORDER,
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
    import numpy as np

    by_column = Array(np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)))
    record = to_arrays({})
    record["a"] = by_column
    back = from_arrays(record, {"a": TensorInfo((2, 3), torch.float32)})["a"]
    assert back.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_state_arrives_as_it_was() -> None:
    family = make_family("resnet8", "nefl-wd", input_shape=(1, 8, 8))
    state = family.initial_state(3)
    back = arrays_to_state(state_to_arrays(state), family, 0)
    assert state_sha256(back) == state_sha256(state)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_by_name(data: bytes) -> None:
    record = to_arrays({})
    record["a"] = Array("float32", (3,), "numpy.ndarray", data)
    with pytest.raises(UpdateError, match="^a "):
        from_arrays(record, {"a": TensorInfo((3,), torch.float32)})


def test_pickles_are_refused() -> None:
    record = to_arrays({})
    record["a"] = Array("object", (3,), "pickle", b"\x80\x04.")
    with pytest.raises(UpdateError, match="of 'pickle'"):
        from_arrays(record, {"a": TensorInfo((3,), torch.float32)})


def test_orders_arrive_as_they_were() -> None:
    order = Order(TrainTask(3, 4, 2), "f" * 64, "server", 4, (10, 20), {"config": {"seed": 1}})
    assert read_order(RecordDict({ORDER: order_record(order)})) == order
    with pytest.raises(UpdateError, match="nefl-order"):
        read_order(RecordDict())
    with pytest.raises(UpdateError, match="nefl-order"):
        read_order(RecordDict({ORDER: ConfigRecord({"order": "{}"})}))
