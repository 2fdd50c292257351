"""What follows from nefl's own code alone, worked out once on a machine and kept in the cache.

Counting what a family costs loads torch, which takes longer than all else that `nefl profile` does.
What is kept is found again only under the same code, the same torch and the same question.
"""

import hashlib
import json
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nefl.errors import NeflError
from nefl.files import default_cache, read_small, write_atomically
from nefl.parsing import parse_json


def recall(kind: str, what: str) -> Any:
    """Return what was worked out before; None if nothing was, or if its file is damaged.

    Args:
        kind: the folder of the cache.
        what: the question, in full.
    """
    with suppress(OSError, ValueError):
        return parse_json(read_small(_path(kind, what)))
    return None


def remember(kind: str, what: str, answer: Any) -> None:
    """Keep an answer, as JSON. A cache that cannot be written costs time, nothing else."""
    path = _path(kind, what)

    def fill(beside: Path) -> None:
        beside.write_text(json.dumps(answer), encoding="utf-8")

    with suppress(OSError, NeflError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, fill)


def _path(kind: str, what: str) -> Path:
    name = hashlib.sha256(f"{what} {version('torch')} {_own_code()}".encode()).hexdigest()
    return default_cache() / kind / f"{name}.json"


@lru_cache(maxsize=1)
def _own_code() -> str:
    """Return a checksum of nefl's code."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
