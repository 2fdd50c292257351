"""Clients' memory in a run's folder: a file for each client and round in which its update counted.

A file is written when a client has trained. If its update does not count, the file is dropped
before the round can have a checkpoint. A run that goes on from a checkpoint, or tries a round
again, first drops what was kept in later rounds, so that it goes on as if they had not been. So
what counts is the newest file of an earlier round. Files that no checkpoint could need any more
are dropped too.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from nefl.artifacts import kept
from nefl.artifacts.tensorfile import read_tensors, save_tensors
from nefl.files import part_of, refuse_link, remove_part, write_atomically
from nefl.state import Tensors

_FILE = re.compile(r"client-(\d+)-round-(\d+)\.safetensors")


class MemoryFiles:
    """All clients' memory of a run.

    Args:
        run: the run's folder.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._rounds: dict[int, list[int]] = {}

    @property
    def folder(self) -> Path:
        """Where the files lie."""
        return self._run / kept.MEMORY

    def begin(self, done: int) -> None:
        """Get ready for the round after so many: drop what was kept later, or is needed no more.

        Raises:
            RunError: if the folder is a link to elsewhere.
        """
        refuse_link(self.folder)
        self.folder.mkdir(exist_ok=True)
        oldest = kept.oldest_round(self._run)
        self._rounds = {}
        for path in self.folder.iterdir():
            found = _FILE.fullmatch(path.name)
            if found is not None and int(found[2]) <= done:
                self._rounds.setdefault(int(found[1]), []).append(int(found[2]))
            elif found is not None:
                path.unlink(missing_ok=True)
            elif _FILE.fullmatch(part_of(path) or ""):
                remove_part(path)
        for client, rounds in self._rounds.items():
            needed = self._rounds[client] = kept.needed_rounds(rounds, oldest)
            for number in set(rounds).difference(needed):
                memory_file(self.folder, client, number).unlink(missing_ok=True)

    def settle(self, round_number: int, counted: Collection[int]) -> None:
        """Drop what clients kept in a round in which their updates did not count."""
        for path in self.folder.iterdir():
            found = _FILE.fullmatch(path.name)
            if found and int(found[2]) == round_number and int(found[1]) not in counted:
                path.unlink(missing_ok=True)

    def last_round(self, client: int) -> int | None:
        """Return the last round in which a client's update counted, if one did."""
        return self._rounds[client][-1] if client in self._rounds else None

    def keeper(self, client: int, round_number: int) -> "MemoryFile":
        """Return where a client's memory lies in a round."""
        return MemoryFile(self.folder, client, round_number, self.last_round(client))


@dataclass(frozen=True)
class MemoryFile:
    """One client's memory in one round.

    Attributes:
        folder: where the files lie.
        client: the client's number.
        round_number: the round that it trains in.
        last: the round in which its update counted last, if one did.
    """

    folder: Path
    client: int
    round_number: int
    last: int | None

    def load(self) -> tuple[int, Tensors] | None:
        """Return what the client kept last and in which round.

        Raises:
            RunError: if the file is missing or damaged.
        """
        if self.last is None:
            return None
        path = memory_file(self.folder, self.client, self.last)
        refuse_link(path)
        return self.last, read_tensors(path)[1]

    def save(self, tensors: Tensors) -> None:
        """Keep what the client has after this round.

        Raises:
            RunError: if the disk does not take it.
        """
        path = memory_file(self.folder, self.client, self.round_number)
        write_atomically(path, lambda to: save_tensors(to, tensors, {}), follow_links=False)


def memory_file(folder: Path, client: int, round_number: int) -> Path:
    """Return the file of a client's memory after a round."""
    return folder / f"client-{client:07d}-round-{round_number:07d}.safetensors"
