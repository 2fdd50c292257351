"""The methods: what each is, how one is found, and the family that it trains."""

from nefl.methods.families import (
    built_in_levels,
    capability_levels,
    check_ratios,
    family_of,
    make_family,
)
from nefl.methods.finding import (
    check_sets,
    find_method,
    method_of,
    method_reference,
    networks_like,
    networks_of,
)
from nefl.methods.method import Method
from nefl.methods.prices import macs_in_round, priced, trains_members
from nefl.methods.table import METHODS

__all__ = [
    "METHODS",
    "Method",
    "built_in_levels",
    "capability_levels",
    "check_ratios",
    "check_sets",
    "family_of",
    "find_method",
    "macs_in_round",
    "make_family",
    "method_of",
    "method_reference",
    "networks_like",
    "networks_of",
    "priced",
    "trains_members",
]
