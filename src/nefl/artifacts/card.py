"""What an exported file says of the model in it, so that it can be used without its run."""

import math
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from nefl.errors import ConfigError, NeflError, RunError
from nefl.nesting.spec import SubmodelSpec

CARD_KEY = "nefl"
"""Under this name the card lies in a file's metadata."""

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class SubmodelCard:
    """One submodel: what it is, how good it is, what it costs.

    Attributes:
        number: its number in its family, from 1.
        spec: its width and blocks.
        params: weights, norm scales and shifts, classifiers, as trained.
        macs: multiply-accumulates of all layers for one image.
        memory: bytes that a prediction needs: weights and live activations, estimated.
        accuracy: the share of test images that it gets right in this file, 0 to 1.
        images: how many test images that was measured on.
    """

    number: int
    spec: SubmodelSpec
    params: int
    macs: int
    memory: int
    accuracy: float | None = None
    images: int = 0

    def __post_init__(self) -> None:
        """Refuse figures that no submodel has."""
        if self.number < 1:
            raise ConfigError(f"submodel {self.number}: they are numbered from 1")
        if min(self.params, self.macs, self.memory, self.images) < 0:
            raise ConfigError(
                f"submodel {self.number}: params {self.params}, macs {self.macs}, memory "
                f"{self.memory}, images {self.images}: give 0 or more"
            )
        if self.accuracy is not None and not 0 <= self.accuracy <= 1:  # nan is not either
            raise ConfigError(f"submodel {self.number}: accuracy {self.accuracy}: give 0 to 1")


@dataclass(frozen=True)
class Card:
    """What a file says of the model in it.

    Attributes:
        model: its name in the table of models, or the user's function.
        method: the method it was trained by.
        data: the data set it was trained on.
        rounds: rounds of training.
        class_names: position = class.
        image_shape: (C, H, W) of the images it was trained on, to which others are brought first.
        input_shape: (C, H, W) that the network takes, float32.
        mean: of each channel of pixel / 255; input = (pixel / 255 - mean) / std.
        std: likewise.
        submodels: the one in the file, or all of a family.
        quantized: `int8`, or None for float32.
        version: of nefl, when the file was made.
        networks: a method of nefl's own that builds the same networks; `method` if empty.
    """

    model: str
    method: str
    data: str
    rounds: int
    class_names: tuple[str, ...]
    image_shape: Shape
    input_shape: Shape
    mean: tuple[float, ...]
    std: tuple[float, ...]
    submodels: tuple[SubmodelCard, ...]
    quantized: str | None = None
    version: str = ""
    networks: str = ""

    def __post_init__(self) -> None:
        """Refuse what no image could be brought to, or no answer could be named by."""
        channels = self.image_shape[0]
        sides = (*self.image_shape[1:], *self.input_shape[1:])
        if channels not in (1, 3) or self.input_shape[0] != channels:
            raise ConfigError(f"image shape {self.image_shape}: files hold grey or RGB models")
        if min(sides) < 1 or max(sides) > 4096:
            raise ConfigError(f"image sides {sides}: give 1 to 4096 pixels")
        if len(self.mean) != channels or len(self.std) != channels:
            raise ConfigError(f"{len(self.mean)} means, {len(self.std)} deviations: {channels} fit")
        if not all(
            math.isfinite(m) and 0 < s < math.inf for m, s in zip(self.mean, self.std, strict=True)
        ):
            raise ConfigError("mean and std: give finite means, and finite deviations above 0")
        if not self.class_names or not self.submodels:
            raise ConfigError("a card names its classes and its submodels")
        if len(set(self.class_names)) < len(self.class_names):
            raise ConfigError("class_names: each class needs a name of its own")


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
        return _ADAPTER.validate_json(text)
    except (ValidationError, NeflError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise RunError(
            f"{source}: its description cannot be read ({first}); it is damaged, or from another "
            "version of nefl; export it again"
        ) from None
