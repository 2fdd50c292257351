"""What a model takes and gives, as far as building and costing it need to know."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from nefl.errors import ConfigError

if TYPE_CHECKING:  # those who only read of a signature load no torch
    import torch
    from torch import Tensor

MAX_OUTPUTS = 1_000_000


@dataclass(frozen=True)
class Signature:
    """What a model takes and gives.

    Attributes:
        input_shape: one example, without the batch axis.
        outputs: numbers that it returns for an example: classes, targets, tokens of a vocabulary.
        tokens: where its inputs are tokens, how many there are; 0 where inputs are numbers.
        each_token: whether it answers for every token of an input, instead of once.
        padding: the token that fills up short inputs, if there is one.

    Raises:
        ConfigError: if no model can be like that.
    """

    input_shape: tuple[int, ...]
    outputs: int
    tokens: int = 0
    each_token: bool = False
    padding: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no model takes."""
        if not self.input_shape or min(self.input_shape) < 1:
            raise ConfigError(f"input {self.shown}: give sizes above 0, as in 3x32x32")
        if not 1 <= self.outputs <= MAX_OUTPUTS:
            raise ConfigError(f"outputs {self.outputs}: give a number from 1 to {MAX_OUTPUTS}")
        if self.tokens < 0:
            raise ConfigError(f"tokens {self.tokens}: give how many there are, 0 for numbers")
        if self.padding is not None and not 0 <= self.padding < self.tokens:
            raise ConfigError(f"padding {self.padding}: give a token, 0 to {self.tokens - 1}")

    @property
    def shown(self) -> str:
        """The shape for people, as in 3x32x32."""
        return "x".join(map(str, self.input_shape))

    @property
    def numel(self) -> int:
        """How many numbers or tokens one example has."""
        return prod(self.input_shape)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """What a model gives for one example, without the batch axis."""
        return (*self.input_shape, self.outputs) if self.each_token else (self.outputs,)

    def example(self, batch: int, device: "str | torch.device" = "cpu") -> "Tensor":
        """Return a batch of the right shape and dtype, all zeros; without values on `meta`."""
        import torch

        dtype = torch.int64 if self.tokens else torch.float32
        return torch.zeros(batch, *self.input_shape, dtype=dtype, device=device)

    def noise(self, batch: int, seed: int = 0) -> "Tensor":
        """Return a batch of random inputs: normal numbers, or any tokens."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        if self.tokens:
            return torch.randint(self.tokens, (batch, *self.input_shape), generator=generator)
        return torch.randn(batch, *self.input_shape, generator=generator)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Signature":
        """Read what `to_dict` made."""
        return cls(**{**values, "input_shape": tuple(values["input_shape"])})
