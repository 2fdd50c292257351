"""How often Python looks for garbage in cycles."""

import gc

SELDOM = 100_000
"""Objects that are made between two looks; Python's own figure is some hundreds."""


def collect_seldom() -> None:
    """Let this process look for garbage seldom: importing torch makes a million objects that stay.

    They would be gone through again and again, for a sixth of the time that the imports take.
    Everything that is in no cycle, tensors above all, is freed at once as ever.
    """
    gc.set_threshold(SELDOM, *gc.get_threshold()[1:])
