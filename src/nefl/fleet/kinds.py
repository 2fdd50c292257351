"""The kinds of device of a fleet, what each can give, and what of it a submodel takes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nefl.config import DeviceConfig
from nefl.config.checks import Part, require
from nefl.config.reading import read_config
from nefl.elastic.budget import BYTES, COUNTS, SECONDS, parse_amount
from nefl.errors import ConfigError
from nefl.fleet.costs import Costs
from nefl.server.devices import Conditions, Numbers, round_seconds

UNITS = {
    "memory": BYTES,
    "inference_memory": BYTES,
    "bandwidth": BYTES,
    "macs_per_second": COUNTS,
    "inference_macs_per_second": COUNTS,
    "latency": SECONDS,
    "deadline": SECONDS,
}
"""Which units an amount may have, where it is given as text: `"200MB"`, `"5G"`, `"20ms"`."""

MEMORY, TIME, RUN_MEMORY, LATENCY = "training memory", "time", "memory to run", "latency"
"""The budgets of a device, as people read them."""


@dataclass(frozen=True)
class Kind(DeviceConfig):
    """A kind of device: what it has for training, and what a prediction may take.

    Attributes:
        inference_memory: bytes that a prediction may take; no limit if left out.
        latency: seconds that a prediction may take; no limit if left out.
        inference_macs_per_second: its speed in predicting; that in training if left out.
        examples: how many such a device has; those of the run's largest client if left out.
    """

    inference_memory: float | None = None
    latency: float | None = None
    inference_macs_per_second: float | None = None
    examples: int | None = None

    def __post_init__(self) -> None:
        """Refuse devices that cannot exist."""
        super().__post_init__()
        for key in ("inference_memory", "latency", "inference_macs_per_second", "examples"):
            value = getattr(self, key)
            require(value is None or value > 0, f"device {self.name!r}: {key} must be above 0")

    @property
    def device(self) -> DeviceConfig:
        """What of it counts in training, as a run is told."""
        return DeviceConfig(**{f.name: getattr(self, f.name) for f in fields(DeviceConfig)})


@dataclass(frozen=True)
class FleetFile(Part):
    """A fleet as its file describes it.

    Attributes:
        devices: the kinds of device.
        deadline: seconds in which a client is to be done with a round; no limit if left out.
        fluctuation: how much memory, speed and bandwidth vary from round to round: the standard
            deviation of their logarithm.
    """

    devices: tuple[Kind, ...]
    deadline: float | None = None
    fluctuation: float = 0.0

    def __post_init__(self) -> None:
        """Refuse fleets without devices, and two kinds of one name."""
        names = [kind.name for kind in self.devices]
        require(bool(names), "devices: give at least one [[devices]]")
        twice = next((name for name in names if names.count(name) > 1), None)
        require(twice is None, f"device {twice!r}: there are two of that name; rename one")
        require(self.deadline is None or self.deadline > 0, "deadline must be above 0")
        require(
            0 <= self.fluctuation <= 3,
            f"fluctuation is {self.fluctuation}: give a number from 0 to 3",
        )

    def share(self, kind: Kind) -> float:
        """Return how much of the population is of a kind."""
        return kind.share / math.fsum(each.share for each in self.devices)

    def conditions(self, kind: Kind) -> Conditions:
        """Return what a kind has even in a worse round: one standard deviation less than it has."""
        left = math.exp(-self.fluctuation)
        return Conditions(kind.memory * left, kind.macs_per_second * left, kind.bandwidth * left)

    def limits(self, kind: Kind) -> dict[str, float]:
        """Return the budgets of a kind, by name."""
        found = {
            MEMORY: self.conditions(kind).memory,
            TIME: self.deadline,
            RUN_MEMORY: kind.inference_memory,
            LATENCY: kind.latency,
        }
        return {name: limit for name, limit in found.items() if limit is not None}

    def uses(self, kind: Kind, costs: Costs, epochs: int, examples: int) -> dict[str, Numbers]:
        """Return what submodels take of each budget on a kind of device.

        Args:
            kind: the kind.
            costs: of the submodels.
            epochs: local epochs of a round.
            examples: those of a client, where the kind says nothing else.
        """
        macs = costs.train_macs * (kind.examples or examples) * epochs
        speed = kind.inference_macs_per_second or kind.macs_per_second
        return {
            MEMORY: costs.train_memory,
            TIME: round_seconds(macs, costs.payload, self.conditions(kind)),
            RUN_MEMORY: costs.inference_memory,
            LATENCY: costs.macs / speed,
        }


_ADAPTER = TypeAdapter(FleetFile)

_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
"""What pydantic calls a key that there is not."""


def read_fleet(path: Path) -> FleetFile:
    """Read a fleet from a TOML or JSON file.

    Raises:
        ConfigError: naming the device and the key that cannot be.
    """
    values = read_config(path)
    devices = values.get("devices")
    if isinstance(devices, dict):
        raise ConfigError(f"{path}: [devices] is one table; write [[devices]] above each kind")
    if isinstance(devices, list):
        values["devices"] = [
            _with_amounts(each, f"{path}: device {number}") if isinstance(each, dict) else each
            for number, each in enumerate(devices, start=1)
        ]
    try:
        return _ADAPTER.validate_python(_with_amounts(values, str(path)))
    except ValidationError as error:
        raise ConfigError(f"{path}: {_explain(error)}") from None


def _with_amounts(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    def read(key: str, value: Any) -> Any:
        if isinstance(value, bool) and key in UNITS:
            raise ConfigError(f"{where}: {key} is {str(value).lower()}: give a number")
        if not isinstance(value, str) or key not in UNITS:
            return value
        amount = parse_amount(value, UNITS[key])
        if amount is None:
            units = ", ".join(filter(None, UNITS[key]))
            raise ConfigError(f"{where}: {key} is {value!r}: give a number, or one with {units}")
        return amount

    return {key: read(key, value) for key, value in values.items()}


def _explain(error: ValidationError) -> str:
    # A key that is not known comes first: the one that is missing may be the one that was meant.
    first = min(error.errors(), key=lambda each: each["type"] not in _UNKNOWN)
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] in _UNKNOWN:
        of_device = "devices" in first["loc"]
        if of_device and first["loc"][-1] in [f.name for f in fields(FleetFile)]:
            return f"{key} is of the whole fleet; write it above the first [[devices]]"
        part = Kind if of_device else FleetFile
        return f"{key} is not a setting; known are {', '.join(f.name for f in fields(part))}"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    if first["type"] in ("missing", "missing_argument"):
        return f"{key} is missing; give it"
    return f"{key[:200]} is {first['input']!r:.200}: {first['msg']}"
