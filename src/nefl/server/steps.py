"""Server steps: what makes the next weights of a round's average, with a memory of their own.

The plain step takes the average as it is. Others see, for each region of a parameter that the same
clients trained, the weights before the round, the average, and what they remember of that region.
Elements that nobody trained keep their value and their memory; statistics take the average.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nefl.config import ServerConfig, StepConfig
from nefl.errors import ConfigError
from nefl.own_code import call_own
from nefl.references import import_function, is_reference

_SET_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")


@dataclass
class Cell:
    """A region of one parameter whose elements the same submodels hold, in one round.

    All its tensors have one shape, and are float32 at least. A step treats each element for itself:
    how a parameter falls into cells follows from who took part.

    Attributes:
        name: the parameter.
        before: its values before the round.
        mean: the round's average of what clients trained.
        memory: what the step keeps of these elements, by set; to be read and replaced.
        sent: the average of each further set that clients sent, over those who trained these
            elements.
        clients: how many clients trained these elements in this round; one or more.
        population: how many clients there are.
        round_number: the round, from 1.
    """

    name: str
    before: Tensor
    mean: Tensor
    memory: dict[str, Tensor]
    sent: Mapping[str, Tensor] = field(default_factory=dict)
    clients: int = 1
    population: int = 1
    round_number: int = 1

    @property
    def change(self) -> Tensor:
        """How far the clients have moved on average."""
        return self.mean - self.before


class ServerStep:
    """How the server goes on from a round's average. Derive from it, and write `step`.

    Attributes:
        keeps: the sets that it remembers from round to round, by name.
        starts: what the elements of a set are before the first round; 0 if left out.
        needs: the sets that clients have to send for it.
        counts_heads: whether its rule holds only where clients count equally, whatever their
            examples.
    """

    keeps: tuple[str, ...] = ()
    starts: Mapping[str, float] = {}
    needs: tuple[str, ...] = ()
    counts_heads: bool = False

    def step(self, cell: Cell) -> Tensor:
        """Return new values for the elements of a cell."""
        return cell.mean


class Momentum(ServerStep):
    """Server momentum: m ← βm + Δ, w ← w + ηm, where Δ is the average minus w.

    Args:
        momentum: β.
        rate: η; 1.75 (1 - β) if left out, with which a Δ moves w by 1.75 times itself in all.
    """

    keeps = ("momentum",)

    def __init__(self, momentum: float = 0.6, rate: float | None = None) -> None:
        self._momentum = momentum
        self._rate = 1.75 * (1 - momentum) if rate is None else rate

    def step(self, cell: Cell) -> Tensor:
        """Return new values for the elements of a cell."""
        moved = self._momentum * cell.memory["momentum"] + cell.change
        cell.memory["momentum"] = moved
        return cell.before + self._rate * moved


class Adam(ServerStep):
    """FedAdam (Reddi et al., Adaptive federated optimization, algorithm 2).

    m ← β₁m + (1 - β₁)Δ, v ← β₂v + (1 - β₂)Δ², w ← w + ηm / (√v + τ); m starts at 0, v at τ², and
    neither is corrected for that.

    Args:
        momentum: β₁.
        rate: η.
        beta2: β₂.
        tau: τ, how little change counts as much.
    """

    keeps = ("momentum", "variance")

    def __init__(
        self,
        momentum: float = 0.9,
        rate: float = 0.01,
        beta2: float = 0.99,
        tau: float = 1e-3,
    ) -> None:
        self._momentum, self._rate, self._beta2, self._tau = momentum, rate, beta2, tau
        self.starts = {"variance": tau**2}

    def step(self, cell: Cell) -> Tensor:
        """Return new values for the elements of a cell."""
        change = cell.change
        moved = self._momentum * cell.memory["momentum"] + (1 - self._momentum) * change
        variance = self._variance(cell.memory["variance"], change.square())
        cell.memory.update(momentum=moved, variance=variance)
        return cell.before + self._rate * moved / (variance.sqrt() + self._tau)

    def _variance(self, old: Tensor, square: Tensor) -> Tensor:
        return self._beta2 * old + (1 - self._beta2) * square


class Yogi(Adam):
    """FedYogi of the same algorithm: v ← v - (1 - β₂)Δ² sign(v - Δ²), the rest as FedAdam."""

    def _variance(self, old: Tensor, square: Tensor) -> Tensor:
        return old - (1 - self._beta2) * square * torch.sign(old - square)


class Scaffold(ServerStep):
    """The server's half of SCAFFOLD (Karimireddy et al., algorithm 1), with a global rate of 1.

    c ← c + |S|/N · mean of what clients sent: how far their own control variates moved. S are those
    who trained an element. Those who never did have 0 there, so that c is always the mean of all N
    clients' control variates.
    """

    keeps = ("control",)
    needs = ("control",)
    counts_heads = True

    def step(self, cell: Cell) -> Tensor:
        """Return new values for the elements of a cell."""
        share = cell.clients / cell.population
        cell.memory["control"] = cell.memory["control"] + share * cell.sent["control"]
        return cell.mean


class FedDyn(ServerStep):
    """The server's half of FedDyn (Acar et al., algorithm 1).

    The paper keeps h ← h - α|P|/m · Δ and takes the average minus h/α. What is kept here is
    d = -h/α, in which α drops out: d ← d + |P|/m · Δ, and the average plus d.
    """

    keeps = ("drift",)
    counts_heads = True

    def step(self, cell: Cell) -> Tensor:
        """Return new values for the elements of a cell."""
        share = cell.clients / cell.population
        cell.memory["drift"] = cell.memory["drift"] + share * cell.change
        return cell.mean + cell.memory["drift"]


STEPS: Mapping[str, type[Momentum] | type[Adam]] = {
    "momentum": Momentum,
    "adam": Adam,
    "yogi": Yogi,
}
"""The steps that `server.step.name` knows besides `auto` and `mean`, which is none."""


def find_step(
    server: ServerConfig,
    of_method: ServerStep | None = None,
    *,
    method: str = "",
    sends: Collection[str] = (),
) -> ServerStep | None:
    """Return the step that a configuration or its method asks for; None for the plain average.

    Args:
        server: the `server` settings, of which `step` and `weighting` count here.
        of_method: the step that is part of the method, if it has one.
        method: the method's name, for messages.
        sends: the sets that the method's clients send.

    Raises:
        ConfigError: if both ask for one, or the user's own is none, or needs what nobody sends, or
            clients' weights are not such as it can go by.
    """
    config = server.step
    if of_method is not None:
        if config != StepConfig():
            raise ConfigError(
                f"server.step {config.name!r}: method {method} has a step of its own; leave "
                "server.step out, or take another method"
            )
        _check_starts(of_method, method)
        return _checked(of_method, method, sends, server)
    if config.name in ("auto", "mean"):
        return None
    if not is_reference(config.name):
        return STEPS[config.name](**config.given)
    made = call_own(config.name, import_function(config.name), dict(config.given))
    if not isinstance(made, ServerStep):
        raise ConfigError(
            f"{config.name}: makes {type(made).__name__}, expected a step; derive it from "
            "nefl.ServerStep"
        )
    _check_starts(made, config.name)
    return _checked(made, config.name, sends, server)


def _check_starts(step: ServerStep, who: str) -> None:
    """Raise unless what a step's sets start at can be."""
    starts = step.starts
    if not isinstance(starts, Mapping) or not all(
        name in step.keeps and isinstance(value, int | float) and math.isfinite(value)
        for name, value in starts.items()
    ):
        raise ConfigError(
            f"{who}: starts is {starts!r:.80}; give a finite number for sets that it keeps, by name"
        )


def _checked(
    step: ServerStep, who: str, sends: Collection[str], server: ServerConfig
) -> ServerStep:
    """Return a step whose sets can be named as it does, and that gets what it needs.

    Raises:
        ConfigError: if not.
    """
    check_set_names(step, ("keeps", "needs"), who)
    missing = [name for name in step.needs if name not in sends]
    if missing:
        raise ConfigError(
            f"{who}: its step needs {', '.join(missing)} from every client, and they send "
            f"{', '.join(sends) or 'nothing'} beside their weights; take a method that sends it"
        )
    if step.counts_heads and server.weighting != "equal":
        raise ConfigError(
            f"{who}: its step {type(step).__name__} counts heads, and server.weighting is "
            f"{server.weighting!r}; set it to 'equal', or take another method"
        )
    return step


def check_set_names(code: object, keys: Sequence[str], who: str) -> None:
    """Raise unless a step or an objective names its sets as they can be named.

    Raises:
        ConfigError: naming the attribute.
    """
    for key in keys:
        names = getattr(code, key)
        good = isinstance(names, tuple) and all(
            isinstance(name, str) and _SET_NAME.fullmatch(name) for name in names
        )
        if not good or len(set(names)) < len(names):
            raise ConfigError(
                f"{who}: {key} is {names!r:.80}; give a tuple of different names of small letters, "
                "digits, - and _"
            )
