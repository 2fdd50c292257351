"""Which submodel to use within a budget, without flapping between two."""

from collections.abc import Sequence
from dataclasses import dataclass

from nefl.elastic.budget import Budget, Cost
from nefl.errors import ConfigError

MARGIN = 0.1
"""A larger submodel is taken up only if it leaves this share of the budget free."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen.

    Attributes:
        submodel: its number, from 1.
        fits: whether it keeps to the budget; if none does, the smallest is chosen all the same.
    """

    submodel: int
    fits: bool


def choose(
    costs: Sequence[Cost], budget: Budget, current: int | None = None, margin: float = MARGIN
) -> Choice:
    """Choose the largest submodel that keeps to a budget.

    Args:
        costs: of each submodel, smallest first.
        budget: the limits.
        current: the submodel in use. It is kept as long as it fits, unless a larger one would
            leave a share of every limit free: a budget that wavers around one submodel's cost by
            less than that does not switch back and forth.
        margin: that share.
    """
    if not costs:
        raise ConfigError("there is no submodel to choose from")
    if current is None:
        return _largest(costs, budget, 1.0)
    if not 1 <= current <= len(costs):
        raise ConfigError(f"submodel {current}: there are 1 to {len(costs)}")
    upwards = _largest(costs, budget, 1.0 - margin)
    if upwards.fits and upwards.submodel > current:
        return upwards
    if costs[current - 1].fits(budget):
        return Choice(current, fits=True)
    return _largest(costs, budget, 1.0)


def _largest(costs: Sequence[Cost], budget: Budget, share: float) -> Choice:
    for number in range(len(costs), 0, -1):
        if costs[number - 1].fits(budget, share):
            return Choice(number, fits=True)
    return Choice(1, fits=False)
