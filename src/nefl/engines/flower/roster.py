"""Who is there: which node is which client, and what each may train."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Message

from nefl.config import RunConfig
from nefl.engines.flower.capability import (
    Capability,
    largest_in_memory,
    query_content,
    read_capability,
)
from nefl.engines.flower.mailbox import Mailbox, Note
from nefl.engines.flower.messages import CAPABILITY
from nefl.engines.flower.registry import NodeEntry, Registry
from nefl.errors import RunError, UpdateError
from nefl.nesting.profile import SubmodelProfile
from nefl.server.cohort import Standing

_LOOK_SECONDS = 0.5

QUERIES = 3
"""How often a node is asked that fails at the query, before it is turned away."""


@dataclass(frozen=True)
class Terms:
    """What the standing of a node is worked out from.

    Attributes:
        config: the run.
        submodels: how many submodels there are.
        profiles: what each of them costs, smallest first; empty if unknown.
        examples: how many examples each client has; empty if unknown.
        run: what a node needs to time the submodels.
    """

    config: RunConfig
    submodels: int
    profiles: Sequence[SubmodelProfile] = ()
    examples: Sequence[int] = ()
    run: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Member:
    """A node that takes part."""

    client: int
    node: int
    name: str
    standing: Standing


class NodeRoster:
    """The clients of a run and the nodes behind them.

    Args:
        mailbox: the way to the nodes.
        registry: what the operator says of them.
        terms: what their standing is worked out from.
        note: writes into the run's log who joins, leaves and is turned away.
    """

    def __init__(self, mailbox: Mailbox, registry: Registry, terms: Terms, note: Note) -> None:
        self._mailbox = mailbox
        self._registry = registry
        self._terms = terms
        self._note = note
        self._members: dict[int, Member] = {}
        self._asked: dict[int, str] = {}
        self._failed: dict[int, int] = {}
        self._refused: set[int] = set()
        self._names: dict[int, str] = {}
        self._complete = False

    def present(self) -> Sequence[int]:
        """Return the clients that are there, waiting for them where there are too few.

        Raises:
            RunError: if too few are there and no more come.
        """
        config = self._terms.config
        patience = config.engine.flower.patience
        needed = max(1, math.ceil(config.server.quorum * config.clients.per_round))
        # The first round waits for everybody: a cohort from half the population is another run.
        hoped = needed if self._complete else config.clients.count
        deadline = time.monotonic() + patience
        self._look()
        while len(self._members) < hoped and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            self._look()
        self._complete = True
        if len(self._members) < needed:
            raise RunError(
                f"{len(self._members)} clients are there, a round needs {needed} (server.quorum of "
                f"clients.per_round), and no more came in {patience:g} s; start more nodes, or "
                "raise engine.flower.patience, then resume"
            )
        return sorted(self._members)

    def standing(self, client: int) -> Standing:
        """Return what is known of a client."""
        member = self._members.get(client)
        return Standing() if member is None else member.standing

    def node(self, client: int) -> int | None:
        """Return the node behind a client, if it is there."""
        member = self._members.get(client)
        return None if member is None else member.node

    def largest(self, client: int) -> int:
        """Return the largest submodel that a client may train."""
        return self.standing(client).largest or self._terms.submodels

    def who(self, client: int) -> str:
        """Return a client's number with the name or number of its node."""
        member = self._members.get(client)
        if member is None:
            return f"client {client}"
        return f"client {client} (node {member.name or member.node})"

    def _look(self) -> None:
        """See who has come and gone, and ask those who are new."""
        nodes = self._mailbox.nodes()
        for client, member in list(self._members.items()):
            if member.node not in nodes:
                del self._members[client]
                self._note("left", client=client, node=str(member.node), name=member.name)
        self._asked = {node: number for node, number in self._asked.items() if node in nodes}
        known = {member.node for member in self._members.values()} | self._refused
        for node, name in sorted(nodes.items(), key=lambda item: (item[1], item[0])):
            if node not in known and node not in self._asked:
                self._meet(node, name)
        heard = [self._hear(r) for r in self._mailbox.fetch(list(self._asked.values()))]
        # Those who say which client they are come first: the others take what is left.
        for node, capability in sorted(
            (answer for answer in heard if answer is not None), key=lambda a: a[1].client is None
        ):
            name = nodes.get(node, "")
            entry = self._registry.entry(name)
            if entry is not None:
                self._admit(node, name, entry, capability)

    def _meet(self, node: int, name: str) -> None:
        entry = self._registry.entry(name)
        if entry is None:
            self._refuse(node, name, "it is not in the operator's registry")
        elif entry.client is not None and entry.tier is not None:
            self._admit(node, name, entry, Capability())  # nothing is left to ask
        else:
            flower = self._terms.config.engine.flower
            content = query_content(self._terms.run or {}, measure=flower.measure)
            number = self._mailbox.post(
                content, node, CAPABILITY, round_number=0, seconds=flower.deadline
            )
            if number is not None:
                self._asked[node] = number

    def _hear(self, reply: Message) -> tuple[int, Capability] | None:
        """Return which node answers the query, and what; nothing if it says nothing of use."""
        number = reply.metadata.reply_to_message_id
        node = next((n for n, asked in self._asked.items() if asked == number), None)
        if node is None:
            return None
        del self._asked[node]
        try:
            if not reply.has_error():
                return node, read_capability(reply.content)
            reason = f"it failed at the query: {reply.error.reason}"[:500]
        except UpdateError as error:
            reason = str(error)
        self._failed[node] = self._failed.get(node, 0) + 1
        if self._failed[node] == QUERIES:
            self._refuse(node, "", reason)
        return None

    def _admit(self, node: int, name: str, entry: NodeEntry, capability: Capability) -> None:
        try:
            client = self._number(name, entry, capability)
            standing = work_out_standing(client, entry, capability, self._terms)
        except UpdateError as error:
            self._refuse(node, name, str(error))
            return
        if name:
            self._names[client] = name
        self._members[client] = Member(client, node, name, standing)
        self._note(
            "joined",
            client=client,
            node=str(node),
            name=name,
            tier=standing.tier,
            largest=standing.largest,
            memory=capability.memory,
            threads=capability.threads,
            step_seconds=list(capability.step_seconds),
        )

    def _number(self, name: str, entry: NodeEntry, capability: Capability) -> int:
        """Return which client a node is: as registered, as it says, or the first free number."""
        count = self._terms.config.clients.count
        if entry.client is not None:
            return entry.client
        if capability.client is None:
            free = (c for c in range(count) if not self._taken(c, name))
            number = next(free, None)
            if number is None:
                raise UpdateError(f"all {count} clients (clients.count) are there already")
            return number
        if not 0 <= capability.client < count:
            raise UpdateError(f"says it is client {capability.client}, expected 0 to {count - 1}")
        if self._taken(capability.client, name):
            raise UpdateError(f"says it is client {capability.client}, and that is another node")
        return capability.client

    def _taken(self, client: int, name: str) -> bool:
        # A name cannot be forged, so a number that a named node has had stays its own.
        return (
            client in self._members
            or self._names.get(client, name) != name
            or self._registry.number_taken(client, name)
        )

    def _refuse(self, node: int, name: str, reason: str) -> None:
        self._refused.add(node)
        self._note("refused", node=str(node), name=name, reason=reason)


def work_out_standing(
    client: int, entry: NodeEntry, capability: Capability, terms: Terms
) -> Standing:
    """Return a client's tier and limit: the operator's word first, the node's own after it.

    Raises:
        UpdateError: if no submodel fits the node.
    """
    largest = entry.largest or terms.submodels
    fitting = _largest_fitting(client, entry, capability, terms)
    if fitting is not None:
        if not fitting:
            raise UpdateError("no submodel fits its memory and speed")
        largest = min(largest, fitting)
    tier = entry.tier
    if tier is None and capability.tier is not None:
        tier = min(max(capability.tier, 1), terms.submodels)
    if tier is None and fitting is not None:
        tier = largest
    return Standing(tier if tier is None else min(tier, largest), largest)


def _largest_fitting(
    client: int, entry: NodeEntry, capability: Capability, terms: Terms
) -> int | None:
    """Return the largest submodel that fits a device profile, or nothing if there is no profile."""
    measured = terms.config.engine.flower.measure
    memory = entry.memory or (capability.memory if measured else None)
    speed, steps = entry.macs_per_second, capability.step_seconds if measured else ()
    if not terms.profiles or (memory is None and speed is None and not steps):
        return None
    needs = [profile.train_memory_bytes for profile in terms.profiles]
    fitting = largest_in_memory(None if memory is None else int(memory), needs)
    if client < len(terms.examples):
        seconds = [
            _round_seconds(k, int(terms.examples[client]), entry, steps, terms)
            for k in range(fitting)
        ]
        limit = terms.config.clients.deadline or terms.config.engine.flower.deadline
        fitting = max((k for k, s in enumerate(seconds, start=1) if s <= limit), default=0)
    return fitting


def _round_seconds(
    place: int, examples: int, entry: NodeEntry, step_seconds: Sequence[float], terms: Terms
) -> float:
    """Return how long a round takes with a submodel; what is not known takes no time."""
    local, profile = terms.config.local, terms.profiles[place]
    seconds = 0.0
    if entry.macs_per_second is not None:
        macs = profile.train_macs * examples * local.epochs
        seconds += macs / entry.macs_per_second
    elif step_seconds:
        if place >= len(step_seconds):
            return math.inf  # too slow to be timed
        seconds += step_seconds[place] * local.epochs * math.ceil(examples / local.batch_size)
    if entry.bandwidth is not None:
        seconds += 2 * profile.payload_bytes / entry.bandwidth
    return seconds
