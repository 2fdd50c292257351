"""Asking many nodes at once, and replies that are announced and never come."""

import threading
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.superlink.grid import HttpGrid

from nefl.config import ClientsConfig, EngineConfig, FlowerConfig, RunConfig
from nefl.engines.flower.capability import capability_content, own_capability
from nefl.engines.flower.server.mailbox import THREADS, Grid, Mailbox
from nefl.engines.flower.server.registry import Registry
from nefl.engines.flower.server.roster import NodeRoster
from nefl.engines.flower.server.standing import Terms

NODES = 1000


class Crowd:
    """Nodes that answer at once, but for one whose reply is awaited until the test lets go."""

    def __init__(self, nodes: int, blocks: int) -> None:
        self.nodes = range(1, nodes + 1)
        self.pushes: list[int] = []
        self.at_once = self.most = 0
        self.let_go = threading.Event()
        self._blocks = blocks
        self._sent: dict[str, Message] = {}
        self._lock = threading.Lock()

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=node, name="") for node in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        some = list(messages)
        self.pushes.append(len(some))
        numbers = []
        for message in some:
            number = str(len(self._sent))
            message.metadata.__dict__["_message_id"] = number
            self._sent[number] = message
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        with self._lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        replies = [self._reply(self._sent[number]) for number in message_ids]
        with self._lock:
            self.at_once -= 1
        return replies

    def _reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node == self._blocks:
            self.let_go.wait()
        known = own_capability({"partition-id": node - 1})
        return Message(capability_content(known), reply_to=message)


def test_a_thousand_nodes_are_asked_together_and_one_that_blocks_holds_up_nobody() -> None:
    grid = Crowd(NODES, blocks=500)
    flower = FlowerConfig(patience=2.0)
    config = RunConfig(
        clients=ClientsConfig(count=NODES, per_round=10), engine=EngineConfig(flower=flower)
    )
    threads = threading.active_count()
    roster = NodeRoster(
        Mailbox(cast("Grid", grid)), Registry, Terms(config, 5), lambda *_, **__: None
    )
    present = roster.present()
    assert len(present) == NODES - 1
    assert 499 not in present
    assert len(grid.pushes) == 10
    assert grid.most <= THREADS
    assert threading.active_count() <= threads + THREADS
    grid.let_go.set()
    while 499 not in roster.present():
        pass


class SuperLink:
    """What stands behind Flower's own grid: replies in parts, of which some never come."""

    def __init__(self) -> None:
        self.requests: list[int] = []
        self.withheld: set[str] = set()
        self._replies: dict[str, Message] = {}
        self._parts: dict[str, bytes] = {}

    def announce(
        self, number: str, reply: Message, *, withhold: bool = False, spoil: bool = False
    ) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self._replies[number] = reply
        parts = {key: part.deflate() for key, part in get_all_nested_objects(reply).items()}
        if spoil:  # of the right size and kind, and no message
            head, _, body = parts[reply.object_id].partition(b"\0")
            parts[reply.object_id] = head + b"\0" + b"\xff" * len(body)
        self._parts |= parts
        self.withheld |= parts.keys() if withhold else set()

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802 - Flower's name
        self.requests.append(len(request.message_ids))
        there = {n: self._replies.pop(n) for n in request.message_ids if n in self._replies}
        headings = []
        for number, message in there.items():
            heading = message_to_proto(remove_content_from_message(message))
            heading.metadata.reply_to_message_id = number  # by its own books
            headings.append(heading)
        return PullAppMessagesResponse(
            messages_list=headings,
            message_object_trees=[get_object_tree(m) for m in there.values()],
        )

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802 - Flower's name
        there = request.object_id not in self.withheld
        content = self._parts[request.object_id] if there else b""
        return PullObjectResponse(object_found=True, object_available=there, object_content=content)

    def ConfirmMessageReceived(self, _request: Any) -> None:  # noqa: N802 - Flower's name
        pass


@pytest.fixture
def superlink() -> Iterator[SuperLink]:
    made = SuperLink()
    yield made
    made.withheld.clear()  # and the thread that waits for them ends


def flower_grid(superlink: SuperLink) -> HttpGrid:
    grid = HttpGrid(token="any")  # noqa: S106 - no secret
    grid.set_run(Run.create_empty(1))
    grid.__dict__["_client"] = superlink
    return grid


def test_one_request_asks_for_many_replies_and_each_is_brought_in_alone(
    superlink: SuperLink,
) -> None:
    mailbox = Mailbox(flower_grid(superlink))
    numbers = [f"{place:064x}" for place in range(NODES)]
    for place, number in enumerate(numbers[:8]):
        superlink.announce(number, answer(number, place), withhold=place == 3)
    found = until(lambda: mailbox.fetch(numbers), 7)
    assert sorted(int(str(m.content["told"]["place"])) for m in found) == [0, 1, 2, 4, 5, 6, 7]
    assert mailbox.busy(numbers[3])
    assert max(superlink.requests) == 256
    superlink.requests.clear()
    assert mailbox.fetch(numbers[3:12]) == []
    assert superlink.requests == [8]  # it is not asked again for what is coming in
    superlink.withheld.clear()
    [late] = until(lambda: mailbox.fetch([numbers[3]]), 1)
    assert late.metadata.reply_to_message_id == numbers[3]
    assert not mailbox.busy(numbers[3])


def test_a_reply_that_is_none_costs_that_reply_alone(superlink: SuperLink) -> None:
    """A node writes all of it, also which message it answers."""
    mailbox = Mailbox(flower_grid(superlink))
    sound, spoilt, anothers = numbers = [f"{place:064x}" for place in range(3)]
    superlink.announce(sound, answer(sound, 0))
    superlink.announce(spoilt, answer(spoilt, 1), spoil=True)
    superlink.announce(anothers, answer(sound, 2))
    found = {m.metadata.reply_to_message_id: m for m in until(lambda: mailbox.fetch(numbers), 3)}
    assert found.keys() == set(numbers)
    assert found[sound].content["told"]["place"] == 0
    assert "cannot be read" in str(found[spoilt].error.reason)
    assert "answers another message" in str(found[anothers].error.reason)


def answer(number: str, place: int) -> Message:
    question = Message(RecordDict(), place + 1, "query.capability")
    question.metadata.__dict__["_message_id"] = number
    return Message(RecordDict({"told": ConfigRecord({"place": place})}), reply_to=question)


def until(look: Callable[[], list[Message]], count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        found += look()
    return found
