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
        counted: the rounds in which its update counted, as far as they may be needed, in order;
            the server says so, a node cannot know.
    """

    state: RecordDict
    client: int
    round_number: int
    counted: tuple[int, ...]

    def load(self) -> tuple[int, Tensors] | None:
        """Return what the client kept when its update counted last, and in which round.

        Raises:
            RunError: if it is damaged.
        """
        last = self.counted[-1] if self.counted else None
        if last is None or last not in self._rounds():  # a new context: another Flower run, or node
            return None
        try:
            data = self.state.array_records[self._key(last)][WEIGHTS].data
            return last, safetensors.torch.load(data)
        except (KeyError, SafetensorError, ValueError) as error:
            raise RunError(f"this node's memory of round {last} is damaged ({error})") from None

    def save(self, tensors: Tensors) -> None:
        """Keep what the client has after this round, and drop what is needed no more."""
        for number in self._rounds():
            if number not in self.counted:
                del self.state[self._key(number)]
        self.state[self._key(self.round_number)] = to_arrays(tensors)

    def _rounds(self) -> list[int]:
        found = (_KEY.fullmatch(key) for key in self.state)
        return [int(each[2]) for each in found if each and int(each[1]) == self.client]

    def _key(self, round_number: int) -> str:
        return f"nefl-memory-{self.client}-{round_number}"
