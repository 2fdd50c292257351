"""A client's memory on its own node, in the context that Flower keeps there for a run."""

import re
from dataclasses import dataclass

import safetensors.torch
from flwr.app import RecordDict
from safetensors import SafetensorError

from nefl.engines.flower.messages import WEIGHTS, to_arrays
from nefl.errors import RunError
from nefl.state import Tensors

_KEY = re.compile(r"nefl-memory-(\d+)-(\d+)")


@dataclass(frozen=True)
class ContextMemory:
    """One client's memory while it carries out one order.

    Attributes:
        state: the context's state, which Flower keeps until the node's next message.
        client: the client's number.
        round_number: the round that it trains in.
        oldest: the round of the server's oldest checkpoint, to which the run may go back.
    """

    state: RecordDict
    client: int
    round_number: int
    oldest: int

    def load(self) -> tuple[int, Tensors] | None:
        """Return what the client kept last, of an earlier round, and in which.

        Raises:
            RunError: if it is damaged.
        """
        last = max((r for r in self._rounds() if r < self.round_number), default=None)
        if last is None:
            return None
        try:
            data = self.state.array_records[self._key(last)][WEIGHTS].data
            return last, safetensors.torch.load(data)
        except (KeyError, SafetensorError, ValueError) as error:
            raise RunError(f"this node's memory of round {last} is damaged ({error})") from None

    def save(self, tensors: Tensors) -> None:
        """Keep what the client has after this round, and drop what is needed no more."""
        known = self._rounds()
        needed = max((r for r in known if r <= self.oldest), default=0)
        for number in known:
            # Later ones are of rounds that did not count: the run went back over them.
            if number < needed or number >= self.round_number:
                del self.state[self._key(number)]
        self.state[self._key(self.round_number)] = to_arrays(tensors)

    def _rounds(self) -> list[int]:
        found = (_KEY.fullmatch(key) for key in self.state)
        return [int(each[2]) for each in found if each and int(each[1]) == self.client]

    def _key(self, round_number: int) -> str:
        return f"nefl-memory-{self.client}-{round_number}"
