"""The server's link to its nodes: what a task looks like as a message."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import ArrayRecord, RecordDict

from nefl.config import FlowerConfig
from nefl.engines.flower.messages import (
    ARRAYS,
    ORDER,
    Order,
    order_record,
    state_to_arrays,
    to_arrays,
)
from nefl.engines.flower.server.counted import CountedRounds
from nefl.engines.flower.server.mailbox import Mailbox, Note
from nefl.engines.flower.server.roster import NodeRoster
from nefl.nesting.sets import extract_all, memory_layout
from nefl.nesting.spec import Family
from nefl.server.closing import ClosingRule
from nefl.state import ServerState, TrainTask


@dataclass(frozen=True)
class Link:
    """All that is needed to give a client its task.

    Attributes:
        mailbox: the way to the nodes.
        roster: who they are.
        family: the family.
        flower: deadline, polling, and who chooses the submodel.
        note: writes into the run's log.
        run: what a client needs to set up the run; empty where clients set themselves up.
        memory: bytes that training each submodel takes, smallest first; empty if unknown.
        receives: the sets that clients receive with the weights.
        sends: the sets that they send with theirs.
        counted: in which rounds each client's update counted.
        closing: when a round closes; if left out, it waits for all replies.
    """

    mailbox: Mailbox
    roster: NodeRoster
    family: Family
    flower: FlowerConfig
    note: Note
    run: Mapping[str, Any] = field(default_factory=dict)
    memory: Sequence[int] = ()
    receives: tuple[str, ...] = ()
    sends: tuple[str, ...] = ()
    counted: CountedRounds = field(default_factory=CountedRounds)
    closing: ClosingRule | None = None

    def order(self, task: TrainTask) -> Order:
        """Return what a client is told beside the weights."""
        return Order(
            task,
            self.family.fingerprint,
            self.flower.choice,
            self.roster.largest(task.client),
            tuple(self.memory),
            dict(self.run),
            self.receives,
            self.sends,
            self.counted.of(task.client),
            self.family.base_checksum,
        )


class Weights:
    """A round's weights as records: a submodel's tensors, or all of them once for everybody."""

    def __init__(self, state: ServerState, family: Family) -> None:
        self._state = state
        self._family = family
        self._whole: ArrayRecord | None = None

    def content(self, order: Order) -> RecordDict:
        """Return the content of the message that carries an order."""
        if order.choice == "client":
            if self._whole is None:
                # What else the server's step remembers is no client's affair.
                names = memory_layout(self._family, order.receives)
                received = {name: self._state.memory[name] for name in names}
                self._whole = state_to_arrays(replace(self._state, memory=received))
            arrays = self._whole
        else:
            submodel, sets = order.task.submodel, order.receives
            arrays = to_arrays(extract_all(self._state, self._family, submodel, sets))
        return RecordDict({ARRAYS: arrays, ORDER: order_record(order)})
