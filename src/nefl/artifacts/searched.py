"""What a search found in a run's folder: every member that was scored, a line each.

The first line says what the scores rest on. A search that is begun again takes the scores that are
there, so it goes on where it was stopped; scores of other weights or examples are thrown away.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nefl.artifacts.notes import MAX_LINE, to_json
from nefl.errors import RunError
from nefl.files import open_without_links, refuse_link
from nefl.parsing import parse_json

SEARCHED = "search.jsonl"
FORMAT = "nefl-search-1"


class Journal:
    """The members that were scored in a run's folder.

    Args:
        run: the folder.
        basis: what scores rest on; where it differs from the file's, that is begun anew.

    Raises:
        RunError: if the folder cannot be written.
    """

    def __init__(self, run: Path, basis: Mapping[str, Any]) -> None:
        self._path = run / SEARCHED
        head = {"format": FORMAT, **basis}
        found = read_searched(run)
        same = found[:1] == [head]
        self.known: dict[str, dict[str, Any]] = {}
        if same:
            self.known = {str(line.get("member")): line for line in found[1:]}
        else:
            self._write(head, "w")

    def add(self, line: Mapping[str, Any]) -> None:
        """Note a member that was scored.

        Raises:
            RunError: if the disk does not take it.
        """
        self.known[str(line["member"])] = dict(line)
        self._write(line, "a")

    def _write(self, line: Mapping[str, Any], mode: str) -> None:
        try:
            refuse_link(self._path)
            with self._path.open(mode, encoding="utf-8") as file:
                file.write(to_json(line) + "\n")
        except OSError as error:
            raise RunError(f"{self._path}: cannot be written ({error.strerror})") from None


def read_searched(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a folder's search, the first of which says what they rest on.

    A line that a kill cut off, or that is no entry, is passed over; without a first line, or if
    the file cannot be read, there is nothing.
    """
    path = run / SEARCHED
    if not os.path.lexists(path):
        return []
    found: list[dict[str, Any]] = []
    try:
        with open(path, encoding="utf-8", errors="replace", opener=open_without_links) as file:
            for line in iter(lambda: file.readline(MAX_LINE), ""):
                try:
                    entry = parse_json(line)
                except ValueError:
                    continue
                if isinstance(entry, dict) and (not found or _is_entry(entry)):
                    found.append(entry)
    except OSError:
        return []
    return found if found and found[0].get("format") == FORMAT else []


def _is_entry(entry: Mapping[str, Any]) -> bool:
    def number(key: str) -> bool:
        value = entry.get(key)
        return isinstance(value, int | float) and math.isfinite(value)

    timed = entry.get("latency") is None or number("latency")
    texts = isinstance(entry.get("member"), str) and isinstance(entry.get("trained"), int)
    return timed and texts and all(map(number, ("params", "macs", "memory", "score")))
