"""Going on from a round's average by a step, cell by cell, with its memory.

Works around any average: that is made first, as if there were no step. Further sets of tensors that
clients send are averaged by another of the same kind, in the place of the parameters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nefl.config import ServerConfig
from nefl.errors import ConfigError, OwnCodeError
from nefl.nesting.coverage import cells
from nefl.nesting.inside import trained_own
from nefl.nesting.sets import memory_layout, set_layout, sets_of, shared_set_layout
from nefl.nesting.spec import Family
from nefl.own_code import own_code, place_of
from nefl.server.aggregate import Aggregate
from nefl.server.averages import Average, make_average
from nefl.server.check import check_update
from nefl.server.steps import Cell, ServerStep
from nefl.state import ClientUpdate, ServerState, Sums, Tensors

Corners = tuple[tuple[int, tuple[int, ...]], ...]
"""The submodels that hold a tensor, each with the shape of its corner."""


def make_aggregate(
    state: ServerState,
    family: Family,
    server: ServerConfig,
    *,
    step: ServerStep | None = None,
    sends: Sequence[str] = (),
    population: int = 1,
) -> Average:
    """Return what a round's updates are added to: the average that is asked for, and its step.

    Args:
        state: the state that the clients of this round started from.
        family: the family it belongs to.
        server: the settings.
        step: what is made of the average; nothing, if left out.
        sends: the sets that clients send beside their weights; they are averaged likewise.
        population: how many clients there are.

    Raises:
        ConfigError: if an average of the user's own is none.
    """
    if step is None and not sends:
        return make_average(state, family, server)
    return Stepped(state, family, server, step or ServerStep(), sends=sends, population=population)


def remembering(state: ServerState, family: Family, step: ServerStep | None) -> ServerState:
    """Return the state with exactly the memory that a step keeps; what is missing starts anew."""
    keeps = () if step is None else step.keeps
    if set(sets_of(state.memory)) == set(keeps):
        return state
    starts = {} if step is None else step.starts
    memory: dict[str, Tensor] = {}
    for key in memory_layout(family, keeps):
        kept = state.memory.get(key)
        name = key.partition("/")[0]
        like = _parameter(state, key)
        memory[key] = torch.full_like(like, starts.get(name, 0.0)) if kept is None else kept
    return replace(state, memory=memory)


def _parameter(state: ServerState, key: str) -> Tensor:
    """Return the parameter that a tensor of the memory belongs to."""
    _, place, name = key.split("/", 2)
    if place == "shared":
        return state.shared[name]
    submodel, _, name = name.partition("/")
    return state.per_submodel[int(submodel) - 1][name]


class Stepped:
    """An average, and the step that goes on from it.

    Args:
        state: the state that the clients of this round started from.
        family: the family it belongs to.
        server: the average; with one that votes, elements with too few holders make no step.
        step: the step.
        sends: the sets that clients send beside their weights.
        population: how many clients there are.
    """

    def __init__(
        self,
        state: ServerState,
        family: Family,
        server: ServerConfig,
        step: ServerStep,
        *,
        sends: Sequence[str] = (),
        population: int = 1,
    ) -> None:
        self._state = remembering(state, family, step)
        self._family = family
        self._step = step
        self._who = f"server step {type(step).__name__} ({place_of(type(step))})"
        self._average = make_average(state, family, server)
        self._called = server.average
        nothing = _nothing(state, family)
        # A set is a mean over clients, whatever their weights count by.
        alike = replace(server, weighting="equal")
        self._sent = {name: make_average(nothing, family, alike) for name in sends}
        self._population = population
        self._min_holders = server.min_holders
        self._clients = dict.fromkeys(range(1, len(family) + 1), 0)
        # Of what a submodel has for itself: who trained it within a larger one counts too.
        self._own_clients = dict(self._clients)

    def add(self, update: ClientUpdate) -> None:
        """Count an update, or refuse it and leave everything as it was.

        Raises:
            UpdateError: naming the client, the tensor and the reason.
        """
        if self._sent:
            check_update(update, self._family, self._state.round_number + 1, self._sent)
        self._average.add(replace(update, sent={}) if self._sent else update)
        for name, total in self._sent.items():
            # In the place of the parameters, so that any average will do.
            total.add(replace(update, trained={**update.trained, **update.sent[name]}, sent={}))
        submodel = update.task.submodel
        self._clients[submodel] += 1
        for each in trained_own(update.trained, self._state, self._family, submodel):
            self._own_clients[each] += 1

    def merge(self, sums: Sums) -> None:
        """Count what an aggregator has summed up, or refuse it and leave everything as it was.

        Raises:
            ConfigError: if sums are not all that this average or its step needs of updates.
            UpdateError: naming the tensor or the weight at fault.
        """
        if not isinstance(self._average, Aggregate):
            raise ConfigError(
                f"server.average {self._called!r} needs every update, not their sums: add them "
                "here, or average by 'mean'"
            )
        if self._sent:
            raise ConfigError(
                f"{self._who}: clients send {', '.join(self._sent)} beside their weights, which "
                "sums do not have; add their updates here, or take a step that needs no sets"
            )
        self._average.merge(sums)
        for k in self._clients:
            self._clients[k] += sums.clients[k - 1]
            self._own_clients[k] += sums.own_clients[k - 1]

    @torch.no_grad()
    def finish(self) -> ServerState:
        """Return the state after the round. Afterwards this object is spent.

        Raises:
            OwnCodeError: if a step of the user's own fails.
        """
        before, after = self._state, self._average.finish()
        sent = {name: total.finish() for name, total in self._sent.items()}
        shared, memory = dict(after.shared), dict(before.memory)
        for name in shared_set_layout(self._family):
            theirs = {each: state.shared[name] for each, state in sent.items()}
            place = f"shared/{name}"
            shared[name], new = self._go_on(
                place, before.shared[name], shared[name], theirs, self._corners(name), self._clients
            )
            memory |= new
        own = [dict(tensors) for tensors in after.per_submodel]
        for k, clients in self._own_clients.items():
            names = set_layout(self._family, k).keys() & own[k - 1].keys() if clients else ()
            for name in names:
                old = before.per_submodel[k - 1][name]
                theirs = {each: state.per_submodel[k - 1][name] for each, state in sent.items()}
                whole: Corners = ((k, tuple(old.shape)),)
                own[k - 1][name], new = self._go_on(
                    f"submodel/{k}/{name}", old, own[k - 1][name], theirs, whole, self._own_clients
                )
                memory |= new
        return ServerState(after.round_number, shared, tuple(own), memory)

    def _corners(self, name: str) -> Corners:
        """Return the corner of each trained submodel with that tensor."""
        return tuple(
            (k, info.shape)
            for k, clients in self._clients.items()
            if clients and (info := self._family.layout(k).get(name)) is not None
        )

    def _go_on(
        self,
        place: str,
        old: Tensor,
        mean: Tensor,
        sent: Tensors,
        corners: Corners,
        counts: Mapping[int, int],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return new values of a parameter, and new memory of it where it was trained."""
        trained = [
            (cell.box, clients)
            for cell in cells(tuple(old.shape), corners)
            if (clients := sum(counts[k] for k in cell.holders)) >= self._min_holders
        ]
        if not trained:
            return mean, {}
        values = mean.clone()
        memory = {each: self._state.memory[f"{each}/{place}"].clone() for each in self._step.keeps}
        for box, clients in trained:
            cell = Cell(
                place.rpartition("/")[2],
                _wide(old[box]),
                _wide(mean[box]),
                {each: _wide(tensor[box]) for each, tensor in memory.items()},
                {each: _wide(tensor[box]) for each, tensor in sent.items()},
                clients,
                self._population,
                self._state.round_number + 1,
            )
            new = self._call(cell)
            values[box] = new.to(values.dtype)
            for each, tensor in memory.items():
                tensor[box] = cell.memory[each].to(tensor.dtype)
        return values, {f"{each}/{place}": tensor for each, tensor in memory.items()}

    def _call(self, cell: Cell) -> Tensor:
        """Make a step, and see that it returns what it should."""
        shape = cell.before.shape
        with own_code(self._who):
            new = self._step.step(cell)
        if cell.memory.keys() != set(self._step.keeps):
            raise OwnCodeError(
                f"{self._who}: left {', '.join(map(str, cell.memory)) or 'nothing'} in the memory "
                f"of {cell.name}, and keeps {', '.join(self._step.keeps) or 'nothing'}; name what "
                "it remembers in keeps"
            )
        for what, found in (("values", new), *cell.memory.items()):
            if not isinstance(found, Tensor) or found.shape != shape:
                size = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
                raise OwnCodeError(
                    f"{self._who}: made {what} of {cell.name} into {size}, expected a tensor of "
                    f"shape {tuple(shape)}"
                )
        return new


def _nothing(state: ServerState, family: Family) -> ServerState:
    """Return a state in which all that sets have a tensor for is 0, to add sets to."""

    def empty(tensors: Tensors, names: Mapping[str, object]) -> dict[str, Tensor]:
        return {n: torch.zeros_like(t) if n in names else t for n, t in tensors.items()}

    own = tuple(
        empty(tensors, set_layout(family, k)) for k, tensors in enumerate(state.per_submodel, 1)
    )
    return replace(state, shared=empty(state.shared, shared_set_layout(family)), per_submodel=own)


def _wide(tensor: Tensor) -> Tensor:
    """Return a copy in float32, or in float64 where it is that."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
