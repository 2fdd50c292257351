"""The averages: nefl's by name, and a user's own.

All have the same protocol, `Average`: one is made anew for each round, is given the updates one by
one in the order of the tasks, and then returns the state after the round.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor

from nefl.config import ServerConfig
from nefl.errors import ConfigError
from nefl.nesting.adapters import adapters_of
from nefl.nesting.spec import Family
from nefl.own_code import call_own, check_arguments, own_code, place_of
from nefl.references import import_function, is_reference
from nefl.server.aggregate import Aggregate, Weighting
from nefl.server.check import check_update
from nefl.server.lowrank import PaddedAverage, ProductAverage
from nefl.server.robust import RobustAggregate, median_leaves, trimming
from nefl.server.steps import ServerStep
from nefl.state import ClientUpdate, ServerState, Tensors


class Average(Protocol):
    """What a round's updates are added to."""

    def add(self, update: ClientUpdate) -> None:
        """Count an update, or raise `UpdateError` and leave everything as it was.

        Its tensors are valid until this returns: what is needed later has to be copied.
        """

    def finish(self) -> ServerState:
        """Return the state after the round."""


class _Plain(Protocol):
    def __call__(
        self, state: ServerState, family: Family, *, weighting: Weighting = "equal"
    ) -> Average: ...


PLAIN: Mapping[str, _Plain] = {
    "mean": Aggregate,
    "padded": PaddedAverage,
    "products": ProductAverage,
}
"""The averages that need no settings of their own."""


def make_average(state: ServerState, family: Family, server: ServerConfig) -> Average:
    """Return the average that a configuration asks for, for one round.

    Args:
        state: the state that the clients of this round started from.
        family: the family it belongs to.
        server: the settings.

    Raises:
        ConfigError: if the user's own is none.
    """
    if is_reference(server.average):
        return OwnAverage(state, family, server)
    if server.average in PLAIN:
        return PLAIN[server.average](state, family, weighting=server.weighting)
    left_out = median_leaves if server.average == "median" else trimming(server.trim)
    return RobustAggregate(state, family, left_out, min_holders=server.min_holders)


def find_average(server: ServerConfig, of_method: str, method: str) -> ServerConfig:
    """Return the server's settings with the average that is part of a method, if it has one.

    Raises:
        ConfigError: if the settings ask for another.
    """
    if not of_method:
        return server
    if server.average not in ("mean", of_method):
        raise ConfigError(
            f"server.average {server.average!r}: method {method} averages by {of_method!r}; leave "
            "server.average out, or take another method"
        )
    return replace(server, average=of_method)


def check_average(
    server: ServerConfig, family: Family, step: ServerStep | None = None, sends: Sequence[str] = ()
) -> None:
    """Raise unless the average that a configuration names can be had, before a round needs it.

    Args:
        server: the settings.
        family: what is averaged.
        step: what is made of the average, if anything.
        sends: the sets that are averaged likewise.

    Raises:
        ConfigError: if the user's own cannot be imported, or takes other arguments; or if it needs
            adapters and there are none.
    """
    if server.average in ("padded", "products"):
        adapters_of(family)
        if sends or (step is not None and server.average == "products"):
            what = "sets of its clients" if sends else f"server.step {type(step).__name__}"
            raise ConfigError(
                f"server.average {server.average!r}: makes factors anew that {what} cannot follow "
                "from round to round; leave that out, or average by 'mean'"
            )
    if is_reference(server.average):
        make = import_function(server.average)
        check_arguments(server.average, make, dict.fromkeys(("state", "family", "weighting")))


class OwnAverage:
    """A user's own average: it sees sound updates only, and what it returns is looked at."""

    def __init__(self, state: ServerState, family: Family, server: ServerConfig) -> None:
        self._state, self._family = state, family
        make: Callable[..., Any] = import_function(server.average)
        self._who = f"{server.average} ({place_of(make)})"
        given = {"state": state, "family": family, "weighting": server.weighting}
        self._own = call_own(server.average, make, given)
        for method in ("add", "finish"):
            if not callable(getattr(self._own, method, None)):
                raise ConfigError(
                    f"{self._who}: makes {type(self._own).__name__}, which has no method "
                    f"{method}; give it add(update) and finish()"
                )
        self._clients: set[int] = set()

    def add(self, update: ClientUpdate) -> None:
        """Count an update, or refuse it.

        Raises:
            UpdateError: naming the client, the tensor and the reason.
            OwnCodeError: if the user's code fails.
        """
        round_number = self._state.round_number + 1
        check_update(update, self._family, round_number, counted=self._clients)
        with own_code(f"{self._who}: add"):
            self._own.add(update)
        self._clients.add(update.task.client)

    def finish(self) -> ServerState:
        """Return the state after the round.

        Raises:
            ConfigError: if it is none of this family's.
            OwnCodeError: if the user's code fails.
        """
        with own_code(f"{self._who}: finish"):
            after = self._own.finish()
        if not isinstance(after, ServerState):
            raise ConfigError(
                f"{self._who}: finish returned {type(after).__name__}, expected a nefl.ServerState"
            )
        self._compare(after)
        return ServerState(self._state.round_number + 1, after.shared, after.per_submodel)

    def _compare(self, after: ServerState) -> None:
        before = self._state
        if len(after.per_submodel) != len(before.per_submodel):
            raise ConfigError(
                f"{self._who}: finish returned the own tensors of {len(after.per_submodel)} "
                f"submodels, there are {len(before.per_submodel)}"
            )
        olds, news = (before.shared, *before.per_submodel), (after.shared, *after.per_submodel)
        for old, new in zip(olds, news, strict=True):
            problem = _difference(old, new)
            if problem:
                raise ConfigError(f"{self._who}: finish returned a state that {problem}")


def _difference(old: Tensors, new: Tensors) -> str:
    """Say how tensors differ from others in names, shapes or dtypes; nothing if they do not."""
    for name in old.keys() ^ new.keys():
        return f"{'lacks' if name in old else 'has an unexpected'} {name}"
    for name, tensor in old.items():
        found = new[name]
        if not isinstance(found, Tensor):
            return f"has {name} as {type(found).__name__}, not as a tensor"
        if found.shape != tensor.shape or found.dtype != tensor.dtype:
            return (
                f"has {name} as {found.dtype} {tuple(found.shape)}, expected {tensor.dtype} "
                f"{tuple(tensor.shape)}"
            )
    return ""
