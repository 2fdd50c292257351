"""What stands in a message: tasks, tensors and answers as Flower's records, and back.

Whatever comes in is somebody else's: its size is compared with the family's layout before any of it
is given memory, then names, shapes and dtypes. Nothing is ever unpickled.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import safetensors.torch
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from nefl.artifacts.checkpoint import flatten_state
from nefl.config import WireConfig
from nefl.errors import UpdateError
from nefl.nesting.sets import memory_layout, pack, unpack
from nefl.nesting.spec import Family, Layout
from nefl.state import ClientUpdate, ServerState, Tensors, TrainTask
from nefl.wire.wire import Wire

ARRAYS, ORDER, ANSWER, METRICS = "arrays", "nefl-order", "nefl-answer", "metrics"
ROUND_CONFIG = "config"  # where Flower's own strategies put the round's configuration
EXAMPLES = "num-examples"
CAPABILITY = "query.capability"

WEIGHTS, FORMAT = "weights", "safetensors"
"""The one array of a record, and how it holds the tensors."""

HEADER_BYTES = 1024
"""What a tensor's name, shape and dtype may take in a message."""

REASON_LENGTH = 500
"""Characters of a client's error that go into the log."""

MAX_METRICS = 64
"""Numbers that a client may report besides its weights."""

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
        receives: the sets that come with the weights.
        sends: the sets that must go back with the weights.
        counted: the rounds in which the client's update counted, as far back as a checkpoint could
            need what it kept then; it goes on from the last of them.
        base: the checksum of what is frozen in the family, which the client must have; empty if
            nothing is.
        wire: how weights travel.
        seed: the run's seed, from which the rounding of what travels comes.
    """

    task: TrainTask
    fingerprint: str
    choice: str
    largest: int
    memory: tuple[int, ...]
    run: Mapping[str, Any]
    receives: tuple[str, ...] = ()
    sends: tuple[str, ...] = ()
    counted: tuple[int, ...] = ()
    base: str = ""
    wire: WireConfig = field(default_factory=WireConfig)
    seed: int = 0

    def wire_of(self, family: Family) -> Wire:
        """Return how the weights of a family travel."""
        return Wire(family, self.wire, self.seed)

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
    """Write tensors by name.

    All of them make one array: the SuperLink keeps accounts of every array of every message, which
    takes longer than carrying the bytes.
    """
    # Copies: safetensors refuses tensors that share memory, as tied weights of a model do.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    data = safetensors.torch.save(copies)
    return ArrayRecord({WEIGHTS: Array("uint8", (len(data),), FORMAT, data)})


def from_arrays(record: ArrayRecord, layout: Layout) -> dict[str, Tensor]:
    """Read exactly the tensors of a layout.

    Raises:
        UpdateError: naming the tensor that is missing, unexpected, or not what it should be.
    """
    if list(record) != [WEIGHTS]:
        raise UpdateError(f"has arrays {str(list(record))[:80]}, not {WEIGHTS!r} alone")
    packed = record[WEIGHTS]
    most = sum(info.nbytes for info in layout.values()) + HEADER_BYTES * (len(layout) + 1)
    if packed.stype != FORMAT or len(packed.data) > most:
        raise UpdateError(
            f"its weights come as {len(packed.data)} bytes of {packed.stype!r:.40}, "
            f"expected at most {most} of {FORMAT}"
        )
    try:
        tensors = safetensors.torch.load(packed.data)
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
        raise UpdateError(f"its weights are no {FORMAT} ({str(error)[:80]})") from None
    _compare(tensors, layout)
    return {name: tensors[name] for name in layout}


def _compare(tensors: Tensors, layout: Layout) -> None:
    if tensors.keys() != layout.keys():
        missing = [f"lacks {name}" for name in layout if name not in tensors]
        extra = [f"has unexpected {name!r:.80}" for name in tensors if name not in layout]
        raise UpdateError(" and ".join(missing[:1] + extra[:1]))
    for name, info in layout.items():
        shape, dtype = tuple(tensors[name].shape), tensors[name].dtype
        if shape != info.shape:
            raise UpdateError(f"{name} has shape {str(shape)[:80]}, not {info.shape}")
        if dtype is not info.dtype:
            raise UpdateError(f"{name} has dtype {dtype}, not {info.dtype}")


def state_layout(family: Family, sets: Iterable[str] = ()) -> Layout:
    """Return the layout of a whole server state, its tensors named as in a checkpoint.

    Args:
        family: the family.
        sets: the sets that are in its memory.
    """
    layout = {f"shared/{name}": info for name, info in family.global_layout.items()}
    for k in range(1, len(family) + 1):
        of_submodel = family.layout(k)
        layout |= {f"submodel/{k}/{n}": of_submodel[n] for n in sorted(family.own_names(k))}
    return layout | {f"memory/{name}": i for name, i in memory_layout(family, sets).items()}


def state_to_arrays(state: ServerState) -> ArrayRecord:
    """Write a whole server state with its memory, to carry it in Flower's own way."""
    return to_arrays(flatten_state(state))


def arrays_to_state(
    record: ArrayRecord, family: Family, round_number: int, sets: Sequence[str] = ()
) -> ServerState:
    """Read a whole server state.

    Args:
        record: the arrays.
        family: the family it must be of.
        round_number: the rounds it has behind it.
        sets: the sets that must be in its memory.

    Raises:
        UpdateError: if it is not one of this family's.
    """
    return state_from(from_arrays(record, state_layout(family, sets)), family, round_number, sets)


def state_from(
    tensors: Tensors, family: Family, round_number: int, sets: Sequence[str] = ()
) -> ServerState:
    """Return the server state of tensors that are named as in a checkpoint."""
    own = tuple(
        {name: tensors[f"submodel/{k}/{name}"] for name in sorted(family.own_names(k))}
        for k in range(1, len(family) + 1)
    )
    shared = {name: tensors[f"shared/{name}"] for name in family.global_layout}
    memory = {name: tensors[f"memory/{name}"] for name in memory_layout(family, sets)}
    return ServerState(round_number, shared, own, memory)


def update_content(update: ClientUpdate, tensors: Tensors | None = None) -> RecordDict:
    """Write a client's answer: what it trained, which submodel that is, how many examples.

    Args:
        update: the answer.
        tensors: what it trained, as it travels; as it is, if left out.
    """
    metrics = {name: float(value) for name, value in update.metrics.items()}
    return RecordDict(
        {
            ARRAYS: to_arrays(tensors or pack(update.trained, update.sent)),
            ANSWER: ConfigRecord({"task": json.dumps(asdict(update.task))}),
            METRICS: MetricRecord({EXAMPLES: update.examples, **metrics}),
        }
    )


def wish_content(task: TrainTask, submodel: int) -> RecordDict:
    """Write a client's answer that it wants a smaller submodel than it was sent."""
    return RecordDict({ANSWER: ConfigRecord({"task": json.dumps(asdict(task)), "wants": submodel})})


def read_answer(
    content: RecordDict, order: Order, family: Family, state: ServerState
) -> ClientUpdate | int:
    """Read a client's answer to an order: an update, or the smaller submodel that it wants.

    Args:
        content: the answer.
        order: what was ordered.
        family: the family.
        state: the weights that the round began with.

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
    wire = order.wire_of(family)
    tensors = from_arrays(record, wire.up_layout(done.submodel, order.sends))
    trained, sent = unpack(wire.take(tensors, state, done.submodel))
    return ClientUpdate(done, trained, examples, metrics, sent)


def _read_wish(wanted: object, task: TrainTask) -> int:
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted < task.submodel:
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
