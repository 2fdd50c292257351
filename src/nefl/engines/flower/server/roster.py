"""Who is there: which node is which client, and what each may train."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Message

from nefl.engines.flower.capability import (
    Capability,
    check_version,
    query_content,
    read_capability,
)
from nefl.engines.flower.messages import CAPABILITY, REASON_LENGTH
from nefl.engines.flower.server.mailbox import Mailbox, Note
from nefl.engines.flower.server.refusals import Refusals
from nefl.engines.flower.server.registry import NodeEntry, Registry
from nefl.engines.flower.server.standing import Terms, work_out_standing
from nefl.errors import RunError, UpdateError
from nefl.server.cohort import Standing

_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Member:
    """A node that takes part."""

    client: int
    node: int
    name: str
    standing: Standing


@dataclass(frozen=True)
class _Question:
    """The query that a node was sent: its number, and when it is no longer waited for."""

    number: str
    until: float


class NodeRoster:
    """The clients of a run and the nodes behind them.

    Args:
        mailbox: the way to the nodes.
        registry: returns what the operator says of them just now.
        terms: what their standing is worked out from.
        note: writes into the run's log who joins, leaves, is turned away and let in after all.

    Attributes:
        owing: tells which clients are still at the task of an earlier round; they are asked only
            where too few others are there for a quorum.
    """

    def __init__(
        self, mailbox: Mailbox, registry: Callable[[], Registry], terms: Terms, note: Note
    ) -> None:
        self._mailbox = mailbox
        self._read_registry = registry
        self._registry = registry()
        self._terms = terms
        self._note = note
        self._members: dict[int, Member] = {}
        self._asked: dict[int, _Question] = {}
        self._refusals = Refusals()
        self._replaced: dict[int, int] = {}  # a node that came back under another number: by it
        self._names: dict[int, str] = {}
        self._complete = False
        self._fresh: set[int] = set()
        self._failed: list[int] = []
        self.owing: Callable[[], Collection[int]] = tuple

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
        owing = self.owing()
        free = sorted(client for client in self._members if client not in owing)
        return free if len(free) >= needed else sorted(self._members)

    def returned(self) -> Collection[int]:
        """Return the clients that came, or came back, and were given no task since."""
        return self._fresh

    def failed(self) -> Collection[int]:
        """Return, once, the clients whose late reply to an earlier round was an error."""
        failed, self._failed = self._failed, []
        return failed

    def fail(self, client: int) -> None:
        """Take note that a client failed at a task whose round is over."""
        self._failed.append(client)

    def asked(self, client: int) -> None:
        """Take note that a client is given a task."""
        self._fresh.discard(client)

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
        """See who has come and gone, and ask those who are new or may have been mended."""
        self._registry = self._read_registry()
        nodes = self._mailbox.nodes()
        for client, member in list(self._members.items()):
            if member.node not in nodes:
                self._leave(client, member)
        self._refusals.keep(nodes)
        self._replaced = {
            old: new for old, new in self._replaced.items() if old in nodes and new in nodes
        }
        self._drop_questions(nodes)
        known = {member.node for member in self._members.values()} | self._replaced.keys()
        new = [
            (node, name)
            for node, name in sorted(nodes.items(), key=lambda item: (item[1], item[0]))
            if node not in known and node not in self._asked and self._refusals.due(node)
        ]
        self._ask([node for node, name in new if self._unclear(node, name)])
        asked = {question.number: node for node, question in self._asked.items()}
        heard = [self._hear(reply, asked, nodes) for reply in self._mailbox.fetch(asked)]
        # Those who say which client they are come first: the others take what is left.
        for node, capability in sorted(
            (answer for answer in heard if answer is not None), key=lambda a: a[1].client is None
        ):
            name = nodes[node]
            entry = self._registry.entry(name)
            if entry is not None:
                self._admit(node, name, entry, capability)

    def _drop_questions(self, nodes: Mapping[int, str]) -> None:
        """Wait no longer for answers of nodes that have gone or had their time."""
        for node, question in list(self._asked.items()):
            late = time.monotonic() > question.until
            if node not in nodes or late:
                del self._asked[node]
                self._mailbox.forget([question.number])
            if node in nodes and late:
                seconds = self._terms.config.engine.flower.deadline
                self._refuse(node, nodes[node], f"it did not answer the query in {seconds:g} s")

    def _unclear(self, node: int, name: str) -> bool:
        """Whether a new node has to be asked; else it is let in or turned away."""
        entry = self._registry.entry(name)
        if entry is None:
            self._refuse(node, name, "it is not in the operator's registry")
        elif entry.client is not None and entry.tier is not None:
            self._admit(node, name, entry, Capability())  # nothing is left to ask
        else:
            return True
        return False

    def _ask(self, nodes: Sequence[int]) -> None:
        flower = self._terms.config.engine.flower
        content = query_content(self._terms.run or {}, measure=flower.measure)
        numbers = self._mailbox.post_to_all(
            content, nodes, CAPABILITY, round_number=0, seconds=flower.deadline
        )
        until = time.monotonic() + flower.deadline
        self._asked |= {node: _Question(number, until) for node, number in numbers.items()}

    def _hear(
        self, reply: Message, asked: Mapping[str, int], nodes: Mapping[int, str]
    ) -> tuple[int, Capability] | None:
        """Return which node answers the query, and what; nothing if it says nothing of use.

        Args:
            reply: what came.
            asked: the nodes by the numbers of their queries.
            nodes: the names of those that are there.
        """
        node = asked.get(reply.metadata.reply_to_message_id)
        if node is None or node not in self._asked:
            return None
        del self._asked[node]
        try:
            if not reply.has_error():
                return node, read_capability(reply.content)
            reason = f"it failed at the query: {reply.error.reason}"[:REASON_LENGTH]
        except UpdateError as error:
            reason = str(error)
        self._refuse(node, nodes[node], reason)
        return None

    def _admit(self, node: int, name: str, entry: NodeEntry, capability: Capability) -> None:
        try:
            check_version(capability)
            client = self._number(name, entry, capability)
            standing = work_out_standing(client, entry, capability, self._terms)
        except UpdateError as error:
            self._refuse(node, name, str(error))
            return
        if name:
            self._names[client] = name
        before = self._members.get(client)
        if before is not None:
            self._leave(client, before)
            if name and before.name == name:  # its old number will be gone before long
                self._replaced[before.node] = node
        self._members[client] = Member(client, node, name, standing)
        self._fresh.add(client)
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
            versions=dict(capability.versions),
        )
        refusal = self._refusals.lift(node)
        if refusal is not None:
            self._note(
                "readmitted",
                client=client,
                node=str(node),
                name=name,
                refused=refusal.times,
                reason=refusal.reason,
            )

    def _leave(self, client: int, member: Member) -> None:
        del self._members[client]
        self._note("left", client=client, node=str(member.node), name=member.name)

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
        # A name cannot be forged, so a number that a named node has had stays its own, also while
        # Flower still believes that it is there under its old number.
        member = self._members.get(client)
        return (
            (member is not None and not (name and member.name == name))
            or self._names.get(client, name) != name
            or self._registry.number_taken(client, name)
        )

    def _refuse(self, node: int, name: str, reason: str) -> None:
        if self._refusals.add(node, reason):
            self._note("refused", node=str(node), name=name, reason=reason)
