"""What a built-in architecture knows of itself: which inputs it takes, and how it is built."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import nn

from nefl.nesting.signature import Signature
from nefl.nesting.spec import Blocks, SubmodelSpec

Norm = Literal["tracked", "static"]


@dataclass(frozen=True)
class Making:
    """What a module is made for, besides its spec.

    Attributes:
        signature: what it takes and gives.
        norm: `tracked` batch norms keep running statistics, `static` ones (HeteroFL's) do not.
        learned_steps: whether step sizes are parameters or constants.
        init: the first weights by name; the design's own if left out.
    """

    signature: Signature
    norm: Norm = "tracked"
    learned_steps: bool = True
    init: str | None = None


class Design(Protocol):
    """The design of one model: a frozen dataclass of its sizes."""

    @property
    def full_blocks(self) -> Blocks:
        """The block vectors of the global model: 1 for every block."""

    @property
    def usual(self) -> Signature:
        """What it takes and gives where nothing else is said."""

    @property
    def inits(self) -> Iterable[str]:
        """The names of first weights it knows."""

    def misfit(self, signature: Signature) -> str | None:
        """Say in a few words why it cannot take such inputs; nothing if it can."""

    def build(self, spec: SubmodelSpec, making: Making) -> nn.Module:
        """Build the module of a spec."""
