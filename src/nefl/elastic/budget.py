"""Budgets: what a submodel may cost, written as `params<2M,macs<50M,latency<5ms`."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from nefl.errors import ConfigError

COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}
BYTES = {
    "": 1.0, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KIB": 2.0**10, "MIB": 2.0**20,
    "GIB": 2.0**30,
}  # fmt: skip
SECONDS = {"US": 1e-6, "MS": 1e-3, "S": 1.0}
UNITS: Mapping[str, Mapping[str, float]] = {
    "params": COUNTS,
    "macs": COUNTS,
    "memory": BYTES,
    "latency": SECONDS,
}
"""What can be limited, and in which units."""

_AMOUNT = re.compile(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_LIMIT = re.compile(r"\s*([a-z]+)\s*<=?(.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Budget:
    """Upper limits; None means no limit.

    Attributes:
        params: parameters.
        macs: multiply-accumulates for one example.
        memory: bytes to predict one example.
        latency: seconds to predict one example.
    """

    params: float | None = None
    macs: float | None = None
    memory: float | None = None
    latency: float | None = None

    def __post_init__(self) -> None:
        """Refuse limits that nothing can meet."""
        for name, limit in self.limits.items():
            if not limit > 0:
                raise ConfigError(f"budget: {name} below {limit} fits nothing; give more than 0")

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: float(limit) for name, limit in found.items() if limit is not None}


@dataclass(frozen=True)
class Cost:
    """What one submodel costs, in the units of `Budget`; latency is None until measured."""

    params: float
    macs: float
    memory: float
    latency: float | None = None

    def fits(self, budget: Budget, share: float = 1.0) -> bool:
        """Whether every limit is met when only a share of it may be used.

        Raises:
            ConfigError: if a latency is limited that has not been measured.
        """
        for name, limit in budget.limits.items():
            value = getattr(self, name)
            if value is None:
                raise ConfigError(f"budget: the {name} has not been measured; measure it first")
            if value > limit * share:
                return False
        return True


def parse_amount(text: str, units: Mapping[str, float]) -> float | None:
    """Read a number with a unit, as in `200MB`; None if that is not what the text says."""
    found = _AMOUNT.fullmatch(text)
    factor = units.get(found[2].upper()) if found else None
    if found is None or factor is None:
        return None
    try:
        return float(found[1]) * factor
    except ValueError:
        return None


def parse_budget(text: str) -> Budget:
    """Read `params<2M,macs<50M,memory<8MiB,latency<5ms`, any of them.

    Raises:
        ConfigError: naming the part that cannot be read, and what can.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        found = _LIMIT.fullmatch(part)
        name = found[1].lower() if found else ""
        amount = parse_amount(found[2], UNITS[name]) if found and name in UNITS else None
        if amount is None or name in limits:
            raise ConfigError(
                f"budget {part.strip()!r}: give limits once each, as in params<2M, macs<50M, "
                "memory<8MiB or latency<5ms, with commas between"
            )
        limits[name] = amount
        if not math.isfinite(amount):
            raise ConfigError(f"budget {part.strip()!r}: is too large")
    return Budget(**limits)
