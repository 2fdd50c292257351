"""A complete run: one tree of frozen dataclasses with their defaults."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from nefl.config.checks import Names, Part, require
from nefl.config.engine import EngineConfig
from nefl.config.federation import ClientsConfig, ServerConfig, WireConfig
from nefl.config.learning import (
    DataConfig,
    LocalConfig,
    ModelConfig,
    PartitionConfig,
    ScheduleConfig,
)

AUTO, IMAGES, GIVEN = "auto", "images", "given"
"""What `task` says for what the data set is for, for images, and for one given in memory."""


@dataclass(frozen=True)
class PublishedConfig(Part):
    """What others reported for this run, to set beside what comes out of it.

    Attributes:
        worst: top-1 accuracy of the smallest submodel, in percent as printed.
        average: mean top-1 accuracy of all submodels, likewise.
        source: where it stands, such as a table of the paper.
    """

    worst: float | None = None
    average: float | None = None
    source: str = ""


@dataclass(frozen=True)
class RunConfig(Part):
    """A complete run.

    Attributes:
        about: what the run is, for people.
        seed: where everything random comes from.
        rounds: rounds to train.
        task: what is learned: `auto`, what the data set is for; `images`, `table`, `series`,
            `text-classification`, `next-token`; or one's own as `package.module:function`, called
            with `data.options`.
        metrics: what is measured, by name or `package.module:thing`, the most important first;
            the task's own if left out. One may be given without a list.
    """

    about: str = ""
    seed: int = 0
    rounds: int = 500
    task: str = AUTO
    metrics: Names = ()
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    clients: ClientsConfig = field(default_factory=ClientsConfig)
    local: LocalConfig = field(default_factory=LocalConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    wire: WireConfig = field(default_factory=WireConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    published: PublishedConfig = field(default_factory=PublishedConfig)

    def __post_init__(self) -> None:
        """Refuse runs without end or beginning."""
        require(0 <= self.seed < 2**63, f"seed is {self.seed}: give 0 to {2**63 - 1}")
        require(1 <= self.rounds <= 10**7, f"rounds is {self.rounds}: give 1 to 10000000")
        require(
            self.partition.kind != "tiers" or self.clients.capability != "devices",
            "partition.kind is 'tiers' and clients.capability 'devices': classes go by tiers of "
            "clients, of which devices know nothing; set clients.capability to 'tiers' or 'fixed'",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as plain values, ready for JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return plain
