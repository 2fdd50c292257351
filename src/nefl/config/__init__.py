"""The configuration of a run: one tree of frozen dataclasses with their defaults."""

from nefl.config.engine import EngineConfig, FlowerConfig
from nefl.config.federation import (
    ClientsConfig,
    DeviceConfig,
    ServerConfig,
    StepConfig,
    WireConfig,
    WireFormat,
)
from nefl.config.learning import (
    DataConfig,
    LocalConfig,
    MemberConfig,
    ModelConfig,
    PartitionConfig,
    ScheduleConfig,
)
from nefl.config.run import PublishedConfig, RunConfig

__all__ = [
    "ClientsConfig",
    "DataConfig",
    "DeviceConfig",
    "EngineConfig",
    "FlowerConfig",
    "LocalConfig",
    "MemberConfig",
    "ModelConfig",
    "PartitionConfig",
    "PublishedConfig",
    "RunConfig",
    "ScheduleConfig",
    "ServerConfig",
    "StepConfig",
    "WireConfig",
    "WireFormat",
]
