"""What an exported file says of the model in it, so that it can be used without its run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nefl.errors import ConfigError, NeflError, RunError
from nefl.measured import MeasuredBy
from nefl.nesting.signature import Signature
from nefl.nesting.spec import SubmodelSpec
from nefl.parsing import parse_json

CARD_KEY = "nefl"
"""Under this name the card lies in a file's metadata."""

MAX_NUMBERS = 2**26
"""Numbers of one input, or of one answer: a card may not ask for more memory than that."""


@dataclass(frozen=True)
class SubmodelCard:
    """One submodel: what it is, how good it is, what it costs.

    Attributes:
        number: its number in its family, from 1.
        spec: its width and blocks.
        params: weights, norm scales and shifts, classifiers, as trained.
        macs: multiply-accumulates of all layers for one example.
        memory: bytes that a prediction needs: weights and live activations, estimated.
        values: what was measured of it in this file, by the metrics' names.
        examples: how many test examples that was measured on.
    """

    number: int
    spec: SubmodelSpec
    params: int
    macs: int
    memory: int
    values: Mapping[str, float] = field(default_factory=dict)
    examples: int = 0

    def __post_init__(self) -> None:
        """Refuse figures that no submodel has."""
        if self.number < 1:
            raise ConfigError(f"submodel {self.number}: they are numbered from 1")
        if min(self.params, self.macs, self.memory, self.examples) < 0:
            raise ConfigError(
                f"submodel {self.number}: params {self.params}, macs {self.macs}, memory "
                f"{self.memory}, examples {self.examples}: give 0 or more"
            )
        for name, value in self.values.items():
            if not math.isfinite(value):
                raise ConfigError(f"submodel {self.number}: {name} {value}: give a finite number")


@dataclass(frozen=True)
class Card:
    """What a file says of the model in it.

    Attributes:
        model: its name in the table of models, or the user's function.
        method: the method it was trained by.
        data: the data set it was trained on.
        rounds: rounds of training.
        kind: what sort of task it learned, such as `image-classification`.
        signature: what the network takes and gives.
        metrics: what was measured, the most important first.
        submodels: the one in the file, or all of a family.
        class_names: position = class; empty where it tells no classes apart.
        facts: what must be known to make inputs and read outputs; each kind has its own.
        quantized: `int8`, or None for float32.
        version: of nefl, when the file was made.
        networks: a method of nefl's own that builds the same networks; `method` if empty.
        arguments: what a model function of the user's own was called with.
        base: the checksum of all that is given under its adapters; empty where there are none.
    """

    model: str
    method: str
    data: str
    rounds: int
    kind: str
    signature: Signature
    metrics: tuple[MeasuredBy, ...]
    submodels: tuple[SubmodelCard, ...]
    class_names: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    quantized: str | None = None
    version: str = ""
    networks: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    base: str = ""

    def __post_init__(self) -> None:
        """Refuse what no file of nefl's has."""
        outputs = self.signature.outputs
        if max(self.signature.numel, prod(self.signature.output_shape)) > MAX_NUMBERS:
            raise ConfigError(
                f"input {self.signature.shown}, output {self.signature.output_shape}: at most "
                f"{MAX_NUMBERS} numbers each"
            )
        if not self.submodels or not self.metrics:
            raise ConfigError("a card names its submodels and what was measured of them")
        if self.class_names and len(self.class_names) != outputs:
            raise ConfigError(f"{len(self.class_names)} class_names for {outputs} outputs")
        if len(set(self.class_names)) < len(self.class_names):
            raise ConfigError("class_names: each class needs a name of its own")
        shares = {metric.name for metric in self.metrics if metric.percent}
        for submodel in self.submodels:
            for name, value in submodel.values.items():
                if name in shares and not 0 <= value <= 1:
                    raise ConfigError(f"submodel {submodel.number}: {name} {value}: give 0 to 1")

    @property
    def primary(self) -> MeasuredBy:
        """What was measured, the most important."""
        return self.metrics[0]


_ADAPTER = TypeAdapter(Card)


def card_to_json(card: Card) -> str:
    """Write a card as JSON."""
    return _ADAPTER.dump_json(card).decode()


def card_from_json(text: str | None, source: object) -> Card:
    """Read a card.

    Args:
        text: the JSON, or None where a file has none.
        source: the file, for the error message.

    Raises:
        RunError: if there is none, or it is not a card.
    """
    if text is None:
        raise RunError(f"{source}: says nothing of nefl; give a file that `nefl export` wrote")
    try:
        return _ADAPTER.validate_python(_of_today(parse_json(text)))
    except (ValidationError, NeflError, ValueError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise RunError(
            f"{source}: its description cannot be read ({first}); it is damaged, or from another "
            "version of nefl; export it again"
        ) from None


def _of_today(values: Any) -> Any:
    """Return a card's values; those from when all models told images apart in today's shape."""
    if not isinstance(values, dict) or "signature" in values or "image_shape" not in values:
        return values
    old = dict(values)
    facts = {name: old.pop(name, None) for name in ("image_shape", "mean", "std")}
    outputs = len(old["class_names"]) if isinstance(old.get("class_names"), list) else 0
    submodels, input_shape = old.pop("submodels", None), old.pop("input_shape", None)
    return {
        **old,
        "kind": "image-classification",
        "signature": {"input_shape": input_shape, "outputs": outputs},
        "metrics": [{"name": "accuracy", "better": "up", "percent": True}],
        "submodels": list(map(_old_submodel, submodels)) if isinstance(submodels, list) else None,
        "facts": facts,
    }


def _old_submodel(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    old = dict(values)
    accuracy, images = old.pop("accuracy", None), old.pop("images", 0)
    known = {} if accuracy is None else {"accuracy": accuracy}
    return {**old, "values": known, "examples": images}
