"""The messages of one round: one a task, their replies taken in the order of the tasks.

Where a round may close before all have answered, they are taken in the order in which they come: a
reply that never comes must not hold up, nor keep in memory, those that are there.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from flwr.app import Message, MessageType

from nefl.engines.flower.messages import REASON_LENGTH, Order, content_bytes
from nefl.engines.flower.server.task_messages import Link, Weights
from nefl.errors import UpdateError
from nefl.server.check import check_update
from nefl.server.closing import ClosingRule, Places
from nefl.state import ClientFailure, ClientUpdate, ServerState, TrainTask

WINDOW = 16
"""Replies that may wait in memory for the ones before them."""

SWEEP_SECONDS = 10.0
"""How long after the deadline a reply that is just coming in is waited for."""

GRACE_SECONDS = 60.0
"""How long after a round's deadline a message may still be answered, to be logged as late."""

Result = ClientUpdate | ClientFailure


@dataclass(frozen=True)
class Sent:
    """A message that is under way.

    Attributes:
        place: the place of its task in the round.
        order: what was ordered.
        node: the node it went to.
        who: the client, for people.
        until: when Flower throws it away, by the monotonic clock.
        failed: whether its client has failed at it, having had all the time there was.
    """

    place: int
    order: Order
    node: int
    who: str
    until: float
    failed: bool = False


class Exchange:
    """Sends a round's tasks and collects what comes back.

    Args:
        link: the server's link to the nodes.
        state: the weights that the round starts from.
        tasks: who trains what.

    Attributes:
        pending: messages whose reply may still count, by number.
        overdue: messages whose reply counts no more, by number.
    """

    def __init__(self, link: Link, state: ServerState, tasks: Sequence[TrainTask]) -> None:
        self._link = link
        self._weights = Weights(state, link)
        self._tasks = tasks
        self._results: dict[int, Result] = {}
        self._down = self._up = 0
        self._started = time.monotonic()
        self.pending: dict[str, Sent] = {}
        self.overdue: dict[str, Sent] = {}

    def run(self, deadline: float) -> Iterator[Result]:
        """Send all tasks, then yield what became of each.

        Args:
            deadline: when replies stop counting, by the monotonic clock.
        """
        for place, task in enumerate(self._tasks):
            self._send(place, task, deadline)
        if self._link.closing is None:
            yield from self._in_order(deadline)
        else:
            yield from self._as_they_come(deadline, self._link.closing)

    def _in_order(self, deadline: float) -> Iterator[Result]:
        for place in range(len(self._tasks)):
            while place not in self._results:
                # Of the next tasks only: the others can wait outside.
                near = [n for n, sent in self.pending.items() if sent.place < place + WINDOW]
                if self._collect(near, deadline):
                    continue
                if self._over(place, deadline):
                    self._results[place] = self._give_up(place)
                else:
                    time.sleep(self._link.flower.poll)
            yield self._results.pop(place)

    def _as_they_come(self, deadline: float, rule: ClosingRule) -> Iterator[Result]:
        """Yield what comes until the round closes, then what became of the others."""
        places = Places(self._tasks, rule)
        waiting: dict[int, ClientUpdate] = {}
        looked = 0
        yield from self._seated(places, waiting)
        while self.pending and self._lasted < places.closes:
            numbers = list(islice(self.pending, WINDOW))
            found = self._collect(numbers, deadline)
            yield from self._seated(places, waiting)
            for number in numbers:  # the others come first the next time
                if number in self.pending:
                    self.pending[number] = self.pending.pop(number)
            if not found and all(self._over(s.place, deadline) for s in self.pending.values()):
                break
            looked = 0 if found else looked + len(numbers)
            if looked >= len(self.pending):
                looked = 0
                time.sleep(self._link.flower.poll)
        closed = self._lasted >= places.closes
        for task in places.close():
            yield waiting.pop(task.client)
        for update in waiting.values():
            reason = f"{self._who(update.task)}: others had taken the places for its submodel"
            yield ClientFailure(update.task, reason, discarded=True)
        for sent in list(self.pending.values()):
            yield self._late(sent) if closed else self._give_up(sent.place)

    def _seated(self, places: Places, waiting: dict[int, ClientUpdate]) -> Iterator[Result]:
        """Yield failures, and updates that have a place; the others wait for one."""
        for place in list(self._results):
            result, task = self._checked(self._results.pop(place)), self._tasks[place]
            if isinstance(result, ClientFailure):
                yield result
                seated = places.lose(task)
            else:
                waiting[task.client] = result
                seated = places.take(task, self._lasted)
            for each in seated:
                yield waiting.pop(each.client)

    def _checked(self, result: Result) -> Result:
        """Return an update that can count, or a failure: no place is for what will be refused."""
        if isinstance(result, ClientUpdate):
            link = self._link
            try:
                check_update(result, link.family, result.task.round_number, link.sends)
            except UpdateError as error:
                return ClientFailure(result.task, str(error)[:REASON_LENGTH])
        return result

    def _late(self, sent: Sent) -> ClientFailure:
        reason = f"{sent.who}: the round closed after {self._lasted:.1f} s, before its reply came"
        return ClientFailure(sent.order.task, reason, discarded=True)

    @property
    def _lasted(self) -> float:
        """Seconds since the round began."""
        return time.monotonic() - self._started

    def _who(self, task: TrainTask) -> str:
        return self._link.roster.who(task.client)

    def note_traffic(self) -> None:
        """Write down what Flower carried, headers included."""
        if self._tasks:
            self._link.note(
                "wire",
                round=self._tasks[0].round_number,
                bytes_down=self._down,
                bytes_up=self._up,
                seconds=self._lasted,
            )

    def _send(self, place: int, task: TrainTask, deadline: float) -> None:
        link = self._link
        who, node = self._who(task), link.roster.node(task.client)
        link.roster.asked(task.client)
        if node is None:
            self._results[place] = ClientFailure(task, f"{who}: its node has gone")
            return
        order = link.order(task)
        content = self._weights.content(order)
        seconds = max(1.0, deadline - time.monotonic()) + GRACE_SECONDS
        number = link.mailbox.post(
            content,
            node,
            MessageType.TRAIN,
            round_number=task.round_number,
            seconds=seconds,
        )
        if number is None:
            self._results[place] = ClientFailure(task, f"{who}: Flower did not take its message")
            return
        self._down += content_bytes(content)
        self.pending[number] = Sent(place, order, node, who, time.monotonic() + seconds)

    def _collect(self, numbers: Sequence[str], deadline: float) -> bool:
        """Take in the replies to some messages; return whether there were any."""
        replies = self._link.mailbox.fetch(numbers)
        for reply in replies:
            sent = self.pending.pop(reply.metadata.reply_to_message_id, None)
            if sent is not None:
                self._take(reply, sent, deadline)
        return bool(replies)

    def _take(self, reply: Message, sent: Sent, deadline: float) -> None:
        task = sent.order.task
        try:
            answer = self._read(reply, sent)
        except UpdateError as error:
            reason = f"{sent.who}: {error}"[:REASON_LENGTH]
            self._results[sent.place] = ClientFailure(task, reason)
            return
        if isinstance(answer, ClientUpdate):
            takes = answer.task.submodel
            self._results[sent.place] = answer
        elif time.monotonic() > deadline:
            reason = f"{sent.who}: wants submodel {answer}, but the round's time is up"
            self._results[sent.place] = ClientFailure(task, reason)
            return
        else:
            takes = answer
            self._send(sent.place, replace(task, submodel=answer), deadline)
        if takes != task.submodel:
            self._link.note(
                "smaller" if takes < task.submodel else "larger",
                client=task.client,
                round=task.round_number,
                offered=task.submodel,
                takes=takes,
            )

    def _read(self, reply: Message, sent: Sent) -> ClientUpdate | int:
        if reply.has_error():
            raise UpdateError(f"error {reply.error.code}: {reply.error.reason}")
        if reply.metadata.src_node_id != sent.node:
            raise UpdateError(f"its reply comes from another node, {reply.metadata.src_node_id}")
        self._up += content_bytes(reply.content)
        return self._weights.read(reply.content, sent.order)

    def _over(self, place: int, deadline: float) -> bool:
        """Whether a task's time is up. Replies that wait outside are still let in after it."""
        now = time.monotonic()
        if now <= deadline:
            return False
        number = next(n for n, sent in self.pending.items() if sent.place == place)
        return now > deadline + SWEEP_SECONDS or not self._link.mailbox.busy(number)

    def _give_up(self, place: int) -> ClientFailure:
        number = next(n for n, sent in self.pending.items() if sent.place == place)
        # Its place in the round is settled: a reply that comes from now on is late.
        sent = self.overdue[number] = replace(self.pending.pop(number), failed=True)
        seconds = self._link.flower.deadline
        reason = f"{sent.who}: no reply within {seconds:g} s (engine.flower.deadline)"
        return ClientFailure(sent.order.task, reason)
