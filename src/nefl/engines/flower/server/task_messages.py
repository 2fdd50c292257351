"""The server's link to its nodes: what a task looks like as a message."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import ArrayRecord, RecordDict

from nefl.artifacts.checkpoint import flatten_state
from nefl.config import FlowerConfig, WireConfig
from nefl.engines.flower.messages import (
    ARRAYS,
    ORDER,
    Order,
    order_record,
    read_answer,
    to_arrays,
)
from nefl.engines.flower.server.counted import CountedRounds
from nefl.engines.flower.server.mailbox import Mailbox, Note
from nefl.engines.flower.server.roster import NodeRoster
from nefl.nesting.sets import memory_layout
from nefl.nesting.spec import Family
from nefl.server.closing import ClosingRule
from nefl.state import ClientUpdate, ServerState, TrainTask
from nefl.wire.wire import Wire


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
        wire: how weights travel.
        seed: the run's seed.
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
    wire: WireConfig = field(default_factory=WireConfig)
    seed: int = 0

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
            self.wire,
            self.seed,
        )


class Weights:
    """A round's weights as records: a submodel's tensors, or all of them once for everybody."""

    def __init__(self, state: ServerState, link: Link) -> None:
        self._state = state
        self._family = link.family
        self._outgoing = Wire(link.family, link.wire, link.seed).send(state)
        self._whole: ArrayRecord | None = None

    def content(self, order: Order) -> RecordDict:
        """Return the content of the message that carries an order."""
        if order.choice == "client":
            if self._whole is None:
                # What else the server's step remembers is no client's affair.
                names = memory_layout(self._family, order.receives)
                received = {name: self._state.memory[name] for name in names}
                flat = flatten_state(replace(self._state, memory=received))
                self._whole = to_arrays(self._outgoing.whole(flat))
            arrays = self._whole
        else:
            arrays = to_arrays(self._outgoing.message(order.task.submodel, order.receives))
        return RecordDict({ARRAYS: arrays, ORDER: order_record(order)})

    def read(self, content: RecordDict, order: Order) -> ClientUpdate | int:
        """Read a client's answer to an order of this round.

        Raises:
            UpdateError: saying what is wrong with it.
        """
        return read_answer(content, order, self._family, self._state)
