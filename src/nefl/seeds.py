"""Everything random derives from one seed and the place where it is needed."""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream of random numbers is for; streams of different purposes never meet."""

    COHORT = 1
    SUBMODEL = 2
    CONDITIONS = 3
    TRAINING = 4
    DEVICES = 5
    DOWN = 6
    UP = 7
    SEARCH = 8
    DRAWS = 9


def generator_for(seed: int, purpose: Purpose, *place: int) -> np.random.Generator:
    """Return the random generator of one place, such as a round and a client."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(purpose, *place)))


def number_for(seed: int, purpose: Purpose, *place: int) -> int:
    """Return a 63-bit seed for another library's generator."""
    return int(generator_for(seed, purpose, *place).integers(2**63 - 1))
