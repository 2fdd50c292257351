"""Costs of built-in families, counted once on a machine and kept in the cache.

Counting loads parts of torch that training does not need, some two seconds at every start.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError

from nefl import models, nesting
from nefl.errors import NeflError
from nefl.files import default_cache, read_small, write_atomically
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.profile import profile_family
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family
from nefl.parsing import parse_json

_ADAPTER = TypeAdapter(tuple[SubmodelProfile, ...])


@lru_cache(maxsize=64)
def counted_once(
    family: Family, signature: Signature, batch_size: int, copies: int
) -> tuple[SubmodelProfile, ...]:
    """Return the costs of a built-in family, from the cache where they were counted before.

    Raises:
        ConfigError: if the model cannot take inputs of that shape.
    """
    what = f"{family!r} {signature!r} {batch_size} {copies} {torch.__version__} {_counting()}"
    name = hashlib.sha256(what.encode()).hexdigest()
    path = default_cache() / "costs" / f"{name}.json"
    with suppress(OSError, ValueError, ValidationError):  # not there, or damaged: count anew
        return _ADAPTER.validate_python(parse_json(read_small(path)))
    found = tuple(profile_family(family, signature, batch_size, copies))
    text = json.dumps([asdict(profile) for profile in found])

    def fill(beside: Path) -> None:
        beside.write_text(text, encoding="utf-8")

    with suppress(OSError, NeflError):  # a cache that cannot be written costs time, nothing else
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, fill)
    return found


@lru_cache(maxsize=1)
def _counting() -> str:
    """Return a checksum of the code that costs follow from."""
    digest = hashlib.sha256()
    for package in (models, nesting):
        for folder in package.__path__:
            for path in sorted(Path(folder).glob("*.py")):
                digest.update(path.read_bytes())
    return digest.hexdigest()
