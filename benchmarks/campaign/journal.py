"""What a campaign has done so far: a line of JSON for every finished batch."""

import json
from pathlib import Path
from typing import Any


class Journal:
    """The finished batches of one part, by their numbers.

    Args:
        path: the file; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.entries: dict[int, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.entries[entry["batch"]] = entry

    def note(self, batch: int, found: dict[str, Any]) -> None:
        """Write a finished batch down."""
        entry = {"batch": batch, **found}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        self.entries[batch] = entry
