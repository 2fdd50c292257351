"""Tiers of clients, and which submodels a client of each tier may draw (the paper's ±2 rule)."""

from collections.abc import Sequence

from nefl.errors import ConfigError

TIER_SPREAD = 2
"""A client of tier x draws from submodels x - 2 to x + 2 in the paper."""


def tier_choices(tier: int, submodels: int, spread: int = TIER_SPREAD) -> range:
    """Return the submodels, from 1, that a client of a tier draws from uniformly.

    Raises:
        ConfigError: if there is no such tier.
    """
    if not 1 <= tier <= submodels:
        raise ConfigError(
            f"tier {tier}: with {submodels} submodels there are tiers 1 to {submodels}"
        )
    return range(max(1, tier - spread), min(tier + spread, submodels) + 1)


def submodel_probabilities(
    tier_shares: Sequence[float], submodels: int, spread: int = TIER_SPREAD
) -> list[float]:
    """Return how likely a random client is to train each submodel.

    Args:
        tier_shares: the share of clients in each tier, from tier 1; they need not sum to 1.
        submodels: how many submodels the family has.
        spread: how far a client strays from its tier.

    Raises:
        ConfigError: if the shares are not one non-negative number for each submodel.
    """
    if len(tier_shares) != submodels or min(tier_shares) < 0 or sum(tier_shares) <= 0:
        raise ConfigError(
            f"tier shares {list(tier_shares)}: give {submodels} numbers, none negative, not all 0"
        )
    probabilities = [0.0] * submodels
    for tier, share in enumerate(tier_shares, start=1):
        choices = tier_choices(tier, submodels, spread)
        for submodel in choices:
            probabilities[submodel - 1] += share / sum(tier_shares) / len(choices)
    return probabilities
