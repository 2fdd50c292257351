"""What travels between server and clients: server state, tasks and updates, all of them frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
"""Tensors by their names in a module's state dict."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """All that training changes on the server.

    Attributes:
        round_number: rounds finished so far.
        shared: one tensor of global size for each shared name.
        per_submodel: for each submodel, smallest first, the tensors it shares with nobody.
        memory: what the server's step keeps from round to round: sets of tensors that lie as the
            parameters do, named `set/shared/name` and `set/submodel/k/name`.
        ledger: what is remembered of clients, whole numbers for each of them; empty where who takes
            part does not depend on it. It has no part in a state's checksum.
    """

    round_number: int
    shared: Tensors
    per_submodel: tuple[Tensors, ...]
    memory: Tensors = field(default_factory=dict)
    ledger: Tensors = field(default_factory=dict)

    def to(self, device: torch.device | str) -> "ServerState":
        """Return the state with all tensors on a device; itself, if they are there."""
        kind = torch.device(device)
        groups = self.shared, self.memory, *self.per_submodel
        if all(tensor.device == kind for group in groups for tensor in group.values()):
            return self
        shared, memory, *own = ({name: t.to(kind) for name, t in g.items()} for g in groups)
        return ServerState(self.round_number, shared, tuple(own), memory, self.ledger)


@dataclass(frozen=True, slots=True)
class TrainTask:
    """One client's work in one round.

    Attributes:
        round_number: the round, from 1.
        client: the client's number in the population.
        submodel: the submodel it trains, from 1 as in the paper.
    """

    round_number: int
    client: int
    submodel: int


@dataclass(frozen=True, slots=True)
class ClientUpdate:
    """What a client returns: its submodel's tensors after local training.

    Attributes:
        task: the task that was carried out.
        trained: every tensor of the submodel's state dict, by name; and the own tensors of smaller
            members that were trained inside it, as `member/number/name`.
        examples: how many examples the client trained on; its weight where averages are weighted.
        metrics: what the client measured on the way, such as its mean loss.
        sent: further sets of tensors that a method declares, by the set's name; each has a tensor
            for every parameter of the submodel, of its shape.
    """

    task: TrainTask
    trained: Tensors
    examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    sent: Mapping[str, Tensors] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sums:
    """What the updates of some clients of a round add up to: all that a mean needs of them.

    Attributes:
        round_number: the round, from 1.
        weighting: what weights count: `equal`, clients; `examples`, their examples.
        weights: the weight that each submodel gathered, smallest first.
        own_weights: the same of what submodels have for themselves, which may be trained within
            larger ones too.
        clients: how many clients trained each submodel.
        own_clients: how many trained what it has for itself.
        shared: a sum of global size for each shared name that one of them holds.
        own: for each submodel, the sums of what it shares with nobody; empty if nobody trained it.
    """

    round_number: int
    weighting: str
    weights: tuple[int, ...]
    own_weights: tuple[int, ...]
    clients: tuple[int, ...]
    own_clients: tuple[int, ...]
    shared: Tensors
    own: tuple[Tensors, ...]


@dataclass(frozen=True, slots=True)
class ClientFailure:
    """A task that brought no update.

    Attributes:
        task: the task.
        reason: what happened, for the log.
        discarded: whether nothing is wrong with the client: the round closed without it.
    """

    task: TrainTask
    reason: str
    discarded: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How one submodel does on the test set.

    Attributes:
        submodel: its number, from 1.
        values: what the task measures of it, by the metrics' names.
        loss: its mean loss.
    """

    submodel: int
    values: Mapping[str, float]
    loss: float
