"""A method: the few choices by which NeFL, its variants and its rivals differ."""

from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from nefl.client.objective import Objective
from nefl.config.checks import require
from nefl.models.design import Norm
from nefl.models.families import Scaling
from nefl.nesting.modules import BatchNorm, StepSize
from nefl.server.steps import ServerStep

Exits = Literal["none", "own", "all"]
Members = Literal["scaled", "full", "capable", "small", "exclusive"]


@dataclass(frozen=True)
class Method:
    """One way of training a family.

    Attributes:
        scaling: in what the submodels differ.
        per_submodel: module classes whose tensors each submodel keeps for itself.
        learned_steps: whether step sizes are trained or keep their initial values.
        compensated: whether steps start at 1 plus the blocks skipped after them, instead of at 1.
        norm: tracked or static batch norms.
        exits: which early classifiers a submodel has.
        clip_norm: largest gradient norm in local training, if it is clipped.
        members: which submodels there are: those of the scaling, by what a client can do
            (`scaled`); the full one alone, for every client (`full`) or only for those that can
            train it just then (`capable`); the smallest alone, for every client (`small`); or one
            of them alone, for those that can train it just then (`exclusive`).
        alone: the number of that one, from 1, where it is `exclusive`.
        rolling: whether each round shifts which channels come first (FedRolex).
        objective: what clients follow in local training, where a row is not enough.
        step: what the server makes of a round's average, where that is part of the method.
        small_first: the shares of the rounds up to which only the smallest submodel is trained, and
            from which on all are, where that is part of the method.
        average: how updates are averaged, a name of the averages, where that is part of the method.
        fixed_a: whether the first factor of every adapter stays as it is drawn.
        heads: whether adapters are made of heads, whose outer factors stay as they are drawn.
        about: the method in a few words.
    """

    scaling: Scaling
    per_submodel: tuple[type[nn.Module], ...] = (BatchNorm, StepSize)
    learned_steps: bool = False
    compensated: bool = False
    norm: Norm = "tracked"
    exits: Exits = "none"
    clip_norm: float | None = None
    members: Members = "scaled"
    alone: int = 0
    rolling: bool = False
    objective: Objective = field(default_factory=Objective)
    step: ServerStep | None = None
    small_first: tuple[float, float] | None = None
    average: str = ""
    fixed_a: bool = False
    heads: bool = False
    about: str = ""

    def __post_init__(self) -> None:
        """Refuse what no run could follow."""
        shares = self.small_first
        require(
            shares is None or 0 <= shares[0] < shares[1] <= 1,
            f"Method.small_first is {shares}: give two rising shares of the rounds, from 0 to 1",
        )
