"""Low-rank adapters as tensors: which two make a product, and which families have them."""

from dataclasses import dataclass

from nefl.errors import ConfigError
from nefl.nesting.frozen import Frozen
from nefl.nesting.spec import Family


@dataclass(frozen=True)
class Factors:
    """One adapter: its product B·A is added to a frozen weight, times the family's scaling.

    Attributes:
        a: the name of A, [rank, in].
        b: the name of B, [out, rank].
    """

    a: str
    b: str


class Adapted(Frozen):
    """A frozen base with low-rank adapters on some of its linear maps.

    Attributes:
        factors: its adapters both of whose factors are trained, by the names of their tensors in
            its state dict.
        scaling: what every product is multiplied by, the same at each rank.
    """

    factors: tuple[Factors, ...] = ()
    scaling: float = 1.0


def adapters_of(family: Family) -> tuple[Factors, ...]:
    """Return the adapters of a family's full model, both of whose factors are trained.

    Raises:
        ConfigError: if it has none, or has them inside another module.
    """
    full = family.meta_module(len(family))
    if not isinstance(full, Adapted) or not full.factors:
        raise ConfigError(
            f"{type(full).__name__}: has no adapters whose two factors are trained, so no "
            "products to average; take model lora under method lora, or another average"
        )
    return full.factors
