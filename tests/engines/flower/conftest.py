"""Flower without processes: a grid that calls client apps where it stands."""

import threading
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from nefl.rounds import Observer

Tamper = Callable[[Message], Message | None]


@pytest.fixture(autouse=True)
def _inside_a_server_app() -> Iterator[None]:
    """Flower lets nobody but a running app make messages."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    yield
    for key in ("_run_id", "_node_id", "_task_id"):
        setattr(TaskIdentity, key, None)


class LocalGrid:
    """Answers a message when its reply is asked for.

    Attributes:
        nodes: node config by node number; a node that is taken out has gone.
        names: names that an operator registered.
        tamper: by node, what becomes of its replies to tasks; None keeps a reply back.
        sent: every message that was pushed.
    """

    def __init__(self, app: ClientApp, nodes: dict[int, dict[str, Any]]) -> None:
        self.app = app
        self.nodes = nodes
        self.names: dict[int, str] = {}
        self.tamper: dict[int, Tamper] = {}
        self.sent: list[Message] = []
        self.held: dict[str, Message] = {}
        self._waiting: dict[str, Message] = {}
        self._state: dict[int, RecordDict] = {}
        self._one_at_a_time = threading.Lock()

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=n, name=self.names.get(n, "")) for n in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> list[str | None]:
        numbers: list[str | None] = []
        for message in messages:
            number = str(len(self.sent))
            message.metadata.__dict__["_message_id"] = number
            self.sent.append(message)
            known = message.metadata.dst_node_id in self.nodes
            if known:
                self._waiting[number] = message
            numbers.append(number if known else None)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        with self._one_at_a_time:  # torch's global generator is one for all threads
            return self._pull(message_ids)

    def _pull(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for number in message_ids:
            if number in self.held:
                replies.append(self.held.pop(number))
            elif number in self._waiting:
                reply = self._answer(self._waiting.pop(number))
                if reply is not None:
                    replies.append(reply)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        numbers = self.push_messages(messages)
        return self.pull_messages([number for number in numbers if number is not None])

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        state = self._state.setdefault(node, RecordDict())
        context = Context(1, node, self.nodes[node], state, {})
        try:
            reply = self.app(message, context)
        except Exception as error:
            reply = Message(Error(code=0, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
        if node in self.tamper and message.metadata.message_type == "train":
            return self.tamper[node](reply)
        return reply


def population(count: int, first: int = 1000) -> dict[int, dict[str, Any]]:
    """Nodes as in a simulation, their numbers in no order."""
    return {
        first + (client * 7) % count * 13: {"partition-id": client, "num-partitions": count}
        for client in range(count)
    }


class Killed(Observer):
    """Ends a run in its second round, as a kill between two updates would."""

    seen = 0

    def task_done(self, done: int, tasks: int) -> None:
        self.seen += 1
        if self.seen == tasks + 2:
            raise KeyboardInterrupt
