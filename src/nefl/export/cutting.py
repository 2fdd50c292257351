"""Members that a family was not trained with, cut out of it and exported like any other."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nefl.config import MemberConfig
from nefl.config.learning import LORA
from nefl.elastic.adopt import cut_alone, recalibrate
from nefl.errors import ConfigError
from nefl.export.source import Source
from nefl.models.members import spec_of
from nefl.nesting.spec import SubmodelSpec

CALIBRATION, BATCH = 512, 128
"""Training examples over which the norms of such a member are measured, and how many at once."""


def calibration_batches(source: Source) -> Sequence[Tensor]:
    """Return the inputs over which norms are measured."""
    return torch.split(source.training_batch(CALIBRATION), BATCH)


def member_spec(source: Source, member: MemberConfig) -> SubmodelSpec:
    """Return the spec of a member that is to be cut out of a run's family.

    Raises:
        ConfigError: if the family can have no such member.
    """
    model = source.setting.config.model
    if model.name == LORA:
        raise ConfigError(f"{LORA}: its members are taken by their numbers; give --submodel")
    return spec_of(member, source.setting.family.specs[-1].blocks)


def cut_source(source: Source, spec: SubmodelSpec) -> Source:
    """Return a run's weights with one member, number 1, that need not have been trained.

    Its norms are measured anew.

    Raises:
        NeflError: if the spec is no part of the full model.
    """
    family, state = cut_alone(source.setting.family, source.state, spec)
    state = recalibrate(state, family, calibration_batches(source))
    return Source(replace(source.setting, family=family), state)
