"""Objectives that train smaller members inside a client's own submodel."""

from dataclasses import dataclass

from torch import Tensor

from nefl.client.objective import Local, Objective
from nefl.nesting.inside import members_inside
from nefl.nesting.spec import Family


@dataclass(frozen=True)
class SmallestWithin(Objective):
    """Adds to the submodel's loss that of the smallest member inside it."""

    def members(self, family: Family, submodel: int) -> tuple[int, ...]:
        """Return the smallest member inside, if there is one."""
        return members_inside(family, submodel)[:1]

    def loss(self, local: Local, inputs: Tensor, target: Tensor) -> Tensor:
        """Return the sum of both losses; of the own one, where nothing is inside."""
        total = super().loss(local, inputs, target)
        for number in local.members:
            total = total + local.learned.loss_of(local.member(number)(inputs), target)
        return total
