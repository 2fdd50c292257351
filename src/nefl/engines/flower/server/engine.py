"""The engine that carries tasks to Flower's nodes and their updates back."""

import time
from collections.abc import Collection, Iterator, Sequence

from nefl.engines.flower.server.exchange import Exchange, Sent
from nefl.engines.flower.server.task_messages import Link
from nefl.engines.serial import SerialEngine
from nefl.state import ClientFailure, ClientUpdate, Evaluation, ServerState, TrainTask


class FlowerEngine:
    """Trains on Flower's nodes; evaluates in this process, on the server's test set.

    Args:
        link: the server's link to the nodes.
        here: what evaluates.
    """

    def __init__(self, link: Link, here: SerialEngine) -> None:
        self._link = link
        self._here = here
        self._overdue: dict[str, Sent] = {}
        if link.closing is not None:
            link.roster.owing = self._owing

    def train(
        self, state: ServerState, tasks: Sequence[TrainTask]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        """Yield what became of each task, in the order of the tasks, or in which replies come
        where a round may close before all are there.

        Whatever a node does wrong, and a node that does nothing until the deadline, cost its task.
        """
        self._throw_away_late()
        self._link.counted.begin(state.round_number)
        exchange = Exchange(self._link, state, tasks)
        try:
            yield from exchange.run(time.monotonic() + self._link.flower.deadline)
        finally:
            self._overdue |= exchange.overdue | exchange.pending
            exchange.note_traffic()

    def settle(self, round_number: int, counted: Collection[int]) -> None:
        """Note whose updates counted: a node is told with its client's next task."""
        self._link.counted.settle(round_number, counted)

    def evaluate(self, state: ServerState, submodels: Sequence[int]) -> list[Evaluation]:
        """Measure submodels on the server's test set."""
        return self._here.evaluate(state, submodels)

    def close(self) -> None:
        """Look a last time for replies that came too late."""
        self._throw_away_late()
        self._link.mailbox.forget(self._overdue)
        self._overdue = {}

    def _owing(self) -> Collection[int]:
        """Return the clients whose reply to an earlier round is still to come."""
        self._throw_away_late()
        return {sent.order.task.client for sent in self._overdue.values()}

    def _throw_away_late(self) -> None:
        """Take note of replies to earlier rounds; they must not count, weights have moved on."""
        for reply in self._link.mailbox.fetch(self._overdue):
            sent = self._overdue.pop(reply.metadata.reply_to_message_id, None)
            if sent is not None:
                task = sent.order.task
                if reply.has_error() and not sent.failed:
                    self._link.roster.fail(task.client)
                what = f"error: {reply.error.reason}" if reply.has_error() else "thrown away"
                self._link.note(
                    "late",
                    client=task.client,
                    round=task.round_number,
                    submodel=task.submodel,
                    reason=f"{sent.who}: reply to round {task.round_number} came late, {what}",
                )
        now = time.monotonic()
        expired = [number for number, sent in self._overdue.items() if now > sent.until]
        self._link.mailbox.forget(expired)  # Flower has thrown them away: no reply can come
        for number in expired:
            del self._overdue[number]
