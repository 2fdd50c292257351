"""What a program that trains says of itself: all that a client needs besides weights and data."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nefl.errors import NeflError, RunError
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Role, SubmodelSpec
from nefl.parsing import parse_json

KIND = "nefl-trainable-1"
"""The first thing that the card of such a program says, with the version of its form."""


@dataclass(frozen=True)
class TensorCard:
    """One tensor of the submodel's state dict.

    Attributes:
        name: its name.
        shape: its shape.
        dtype: its dtype, as in `float32`.
        role: `parameter` or `statistic`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role


@dataclass(frozen=True)
class NormCard:
    """A batch norm with running statistics, which the client keeps.

    Attributes:
        name: the module's name; its tensors are `name.running_mean` and so on.
        values: how many values of one example go into the mean of a channel.
        momentum: how much of a batch goes into the running statistics; all batches count alike
            where there is none.
    """

    name: str
    values: int
    momentum: float | None


@dataclass(frozen=True)
class OptimiserCard:
    """How a client of the run steps.

    Attributes:
        name: always `sgd`.
        learning_rate: the rate before any schedule.
        momentum: of the gradients.
        weight_decay: what is added to a gradient, times the parameter.
        epochs: passes over a client's examples in a round.
        schedule: the schedule's settings.
        rounds: rounds of the run, which the schedule counts in.
    """

    name: str
    learning_rate: float
    momentum: float
    weight_decay: float
    epochs: int
    schedule: dict[str, object]
    rounds: int


@dataclass(frozen=True)
class TrainableCard:
    """What a program that trains says of itself.

    Attributes:
        kind: `KIND`.
        model: the model's name.
        method: the method's name.
        family: the fingerprint of the family, which tells it from all others.
        submodel: its number, from 1.
        spec: its width and blocks.
        signature: what the network takes and gives.
        target_shape: the shape of one example's target.
        target_dtype: its dtype, as in `int64`.
        batch_size: examples in a step, at most.
        loss: the task's loss, by name or the name of its function.
        parameters: names of what has gradients, in the program's order.
        norms: the norms whose mean and variance follow the loss, in order.
        layout: all tensors that a client receives and returns, in order.
        executorch: the version of ExecuTorch that made the program.
        nefl: the version of nefl that did.
        optimiser: how the run's clients step; a program that was made for any run has none.
        facts: what must be known to make inputs of a device's own examples; each kind of task has
            its own.
    """

    kind: str
    model: str
    method: str
    family: str
    submodel: int
    spec: SubmodelSpec
    signature: Signature
    target_shape: tuple[int, ...]
    target_dtype: str
    batch_size: int
    loss: str
    parameters: tuple[str, ...]
    norms: tuple[NormCard, ...]
    layout: tuple[TensorCard, ...]
    executorch: str
    nefl: str
    optimiser: OptimiserCard | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


_ADAPTER = TypeAdapter(TrainableCard)


def trainable_to_json(card: TrainableCard, indent: int | None = None) -> str:
    """Write a card as JSON."""
    return _ADAPTER.dump_json(card, indent=indent).decode()


def is_trainable(text: str) -> bool:
    """Whether the card of a program says that it trains."""
    try:
        values = parse_json(text)
    except ValueError:
        return False
    return isinstance(values, dict) and str(values.get("kind", "")).startswith("nefl-trainable-")


def trainable_from_json(text: str, source: object) -> TrainableCard:
    """Read a card.

    Args:
        text: the JSON.
        source: the file, for the error message.

    Raises:
        RunError: if it is the card of something else, or of another version of nefl.
    """
    if not is_trainable(text):
        raise RunError(
            f"{source}: is no program that trains; export one with `nefl export --trainable`"
        )
    kind = json.loads(text)["kind"]
    if kind != KIND:
        raise RunError(f"{source}: is of form {kind}, expected {KIND}; export it again")
    try:
        return _ADAPTER.validate_json(text)
    except (ValidationError, NeflError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise RunError(
            f"{source}: its description cannot be read ({first}); export it again"
        ) from None
