"""What stands in a message: tasks, tensors and answers as Flower's records, and back.

Whatever comes in is somebody else's: sizes, shapes and dtypes are compared with the family's layout
before any of it is given memory, and nothing is ever unpickled.
"""

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from nefl.errors import UpdateError
from nefl.nesting.spec import Family, Layout, TensorInfo
from nefl.state import ClientUpdate, ServerState, Tensors, TrainTask

ARRAYS, ORDER, ANSWER, METRICS = "arrays", "nefl-order", "nefl-answer", "metrics"
EXAMPLES = "num-examples"
CAPABILITY = "query.capability"

HEADER_BYTES = 1024
"""What a tensor's header may take in a message; NumPy's own take 128."""

MAX_METRICS = 64
"""Numbers that a client may report besides its weights."""

_FORMAT = "numpy.ndarray"
_TASK = TypeAdapter(TrainTask)


@dataclass(frozen=True)
class Order:
    """What the server tells a client beside the weights.

    Attributes:
        task: the work. Its submodel is the one that is offered.
        fingerprint: the family's checksum; the client must have built the same.
        choice: `server` if only the offered submodel was sent, `client` if all of them were.
        largest: the largest submodel that the client may train.
        memory: bytes that training each submodel takes, smallest first; empty if unknown.
        run: what a client needs to set up the run, as JSON values; empty for one's own clients.
    """

    task: TrainTask
    fingerprint: str
    choice: str
    largest: int
    memory: tuple[int, ...]
    run: Mapping[str, Any]

    def with_submodel(self, submodel: int) -> "Order":
        """Return the same order for another submodel."""
        return replace(self, task=replace(self.task, submodel=submodel))


_ORDER = TypeAdapter(Order)


def order_record(order: Order) -> ConfigRecord:
    """Write an order; a field that is added to `TrainTask` travels by itself."""
    return ConfigRecord({"order": json.dumps(asdict(order))})


def read_order(content: RecordDict) -> Order:
    """Read an order.

    Raises:
        UpdateError: if there is none in the message.
    """
    try:
        return _ORDER.validate_json(str(content.config_records[ORDER]["order"]))
    except (KeyError, ValidationError) as error:
        raise UpdateError(
            f"a message without a proper {ORDER!r} ({error}); use nefl's engine or strategy on the "
            "server, of the same version as here"
        ) from None


def to_arrays(tensors: Tensors) -> ArrayRecord:
    """Write tensors by name."""
    return ArrayRecord({name: Array(_as_numpy(tensor)) for name, tensor in tensors.items()})


def _as_numpy(tensor: Tensor) -> "np.ndarray[Any, np.dtype[Any]]":
    plain = tensor.detach().cpu().contiguous()
    # NumPy has no bfloat16: its bits travel as integers, and the layout says what they are.
    return (plain.view(torch.int16) if plain.dtype is torch.bfloat16 else plain).numpy()


def from_arrays(record: ArrayRecord, layout: Layout) -> dict[str, Tensor]:
    """Read exactly the tensors of a layout.

    Raises:
        UpdateError: naming the tensor that is missing, unexpected, or not what it should be.
    """
    if record.keys() != layout.keys():
        missing = [name for name in layout if name not in record]
        extra = [name for name in record if name not in layout]
        named = [f"lacks {missing[0]}"] * bool(missing) + [
            f"has unexpected {extra[0]!r:.80}"
        ] * bool(extra)
        raise UpdateError(" and ".join(named))
    return {name: _read_tensor(name, record[name], info) for name, info in layout.items()}


def _read_tensor(name: str, array: Array, info: TensorInfo) -> Tensor:
    dtype = torch.int16 if info.dtype is torch.bfloat16 else info.dtype
    wanted = torch.empty(0, dtype=dtype).numpy().dtype
    if array.stype != _FORMAT or len(array.data) > info.nbytes + HEADER_BYTES:
        raise UpdateError(
            f"{name} comes as {len(array.data)} bytes of {array.stype!r:.40}, expected at most "
            f"{info.nbytes + HEADER_BYTES} of {_FORMAT}"
        )
    stream = io.BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, by_column, found = read(stream, max_header_size=HEADER_BYTES)
    except (ValueError, SyntaxError, TypeError, EOFError, RecursionError) as error:
        raise UpdateError(f"{name} is no NumPy array ({str(error)[:80]})") from None
    if shape != info.shape:
        raise UpdateError(f"{name} has shape {str(shape)[:80]}, not {info.shape}")
    if found != wanted:
        raise UpdateError(f"{name} has dtype {str(found)[:40]}, not {wanted}")
    if len(array.data) - stream.tell() != info.nbytes:
        raise UpdateError(f"{name} has {len(array.data) - stream.tell()} bytes, not {info.nbytes}")
    flat = np.frombuffer(array.data, wanted, offset=stream.tell())
    values = flat.reshape(info.shape, order="F" if by_column else "C").copy(order="C")
    tensor = torch.from_numpy(values)
    return tensor.view(torch.bfloat16) if info.dtype is torch.bfloat16 else tensor


def state_layout(family: Family) -> Layout:
    """Return the layout of a whole server state, its tensors named as in a checkpoint."""
    layout = {f"shared/{name}": info for name, info in family.global_layout.items()}
    for k in range(1, len(family) + 1):
        of_submodel = family.layout(k)
        layout |= {f"submodel/{k}/{n}": of_submodel[n] for n in sorted(family.own_names(k))}
    return layout


def state_to_arrays(state: ServerState) -> ArrayRecord:
    """Write a whole server state, for clients that choose, or to carry it in Flower's own way."""
    tensors = {f"shared/{name}": tensor for name, tensor in state.shared.items()}
    for k, own in enumerate(state.per_submodel, start=1):
        tensors |= {f"submodel/{k}/{name}": tensor for name, tensor in own.items()}
    return to_arrays(tensors)


def arrays_to_state(record: ArrayRecord, family: Family, round_number: int) -> ServerState:
    """Read a whole server state.

    Raises:
        UpdateError: if it is not one of this family's.
    """
    tensors = from_arrays(record, state_layout(family))
    own = tuple(
        {name: tensors[f"submodel/{k}/{name}"] for name in sorted(family.own_names(k))}
        for k in range(1, len(family) + 1)
    )
    shared = {name: tensors[f"shared/{name}"] for name in family.global_layout}
    return ServerState(round_number, shared, own)


def update_content(update: ClientUpdate) -> RecordDict:
    """Write a client's answer: what it trained, which submodel that is, how many examples."""
    metrics = {name: float(value) for name, value in update.metrics.items()}
    return RecordDict(
        {
            ARRAYS: to_arrays(update.trained),
            ANSWER: ConfigRecord({"task": json.dumps(asdict(update.task))}),
            METRICS: MetricRecord({EXAMPLES: update.examples, **metrics}),
        }
    )


def wish_content(task: TrainTask, submodel: int) -> RecordDict:
    """Write a client's answer that it wants a smaller submodel than it was sent."""
    return RecordDict({ANSWER: ConfigRecord({"task": json.dumps(asdict(task)), "wants": submodel})})


def read_answer(content: RecordDict, order: Order, family: Family) -> ClientUpdate | int:
    """Read a client's answer to an order: an update, or the smaller submodel that it wants.

    Raises:
        UpdateError: saying what is wrong with it; whose it is, the caller knows.
    """
    try:
        answer = content.config_records[ANSWER]
        claimed = _TASK.validate_json(str(answer["task"]))
    except (KeyError, ValidationError):
        raise UpdateError("its answer does not say which task it is to") from None
    task = order.task
    if claimed.round_number != task.round_number:
        raise UpdateError(
            f"its answer is to round {claimed.round_number}, this is round {task.round_number}"
        )
    if "wants" in answer:
        return _read_wish(answer["wants"], task)
    limit = order.largest if order.choice == "client" else task.submodel
    if not 1 <= claimed.submodel <= limit:
        raise UpdateError(f"claims submodel {claimed.submodel}, was allowed 1 to {limit}")
    if order.choice == "server" and claimed.submodel != task.submodel:
        raise UpdateError(f"claims submodel {claimed.submodel}, was sent {task.submodel}")
    done = replace(task, submodel=claimed.submodel)
    if done != claimed:
        raise UpdateError(f"its answer is to {claimed}, it was given {task}")
    examples, metrics = _read_metrics(content)
    try:
        record = content.array_records[ARRAYS]
    except KeyError:
        raise UpdateError(f"its answer has no {ARRAYS!r}") from None
    return ClientUpdate(done, from_arrays(record, family.layout(done.submodel)), examples, metrics)


def _read_wish(wanted: object, task: TrainTask) -> int:
    if not isinstance(wanted, int) or not 1 <= wanted < task.submodel:
        raise UpdateError(f"wants submodel {wanted!r:.40}, was offered {task.submodel}")
    return wanted


def _read_metrics(content: RecordDict) -> tuple[int, dict[str, float]]:
    try:
        record = content.metric_records[METRICS]
        examples = record[EXAMPLES]
    except KeyError:
        raise UpdateError(f"its answer does not say {EXAMPLES!r}") from None
    if not isinstance(examples, int):
        raise UpdateError(f"{EXAMPLES} is {examples!r:.40}, expected a whole number")
    if len(record) > MAX_METRICS:
        raise UpdateError(f"reports {len(record)} numbers, at most {MAX_METRICS} are taken")
    numbers = ((n, v) for n, v in record.items() if isinstance(v, int | float) and n != EXAMPLES)
    return examples, {name[:80]: float(value) for name, value in numbers}


def content_bytes(content: RecordDict) -> int:
    """Return the bytes of all arrays in a message."""
    records: Iterable[ArrayRecord] = content.array_records.values()
    return sum(len(array.data) for record in records for array in record.values())
