"""Costs of built-in families, counted once on a machine.

Counting loads parts of torch that training does not need, some two seconds at every start.
"""

from dataclasses import asdict
from functools import lru_cache

from pydantic import TypeAdapter, ValidationError

from nefl.nesting.price import SubmodelProfile
from nefl.nesting.profile import profile_family
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family
from nefl.remembered import recall, remember

_ADAPTER = TypeAdapter(tuple[SubmodelProfile, ...])


@lru_cache(maxsize=64)
def counted_once(
    family: Family, signature: Signature, batch_size: int, copies: int
) -> tuple[SubmodelProfile, ...]:
    """Return the costs of a built-in family, from the cache where they were counted before.

    Raises:
        ConfigError: if the model cannot take inputs of that shape.
    """
    what = f"{family!r} {signature!r} {batch_size} {copies}"
    try:
        return _ADAPTER.validate_python(recall("costs", what))
    except ValidationError:  # nothing there, or not what belongs there: count anew
        found = tuple(profile_family(family, signature, batch_size, copies))
        remember("costs", what, [asdict(profile) for profile in found])
        return found
