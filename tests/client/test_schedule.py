"""Another number of rounds is allowed where it means the same rates so far."""

import pytest

from nefl.client.schedule import first_difference
from nefl.config import ScheduleConfig


@pytest.mark.parametrize(
    ("schedule", "done", "expected"),
    [
        (ScheduleConfig("constant"), 10, None),
        (ScheduleConfig("constant", warmup_steps=20), 10, None),
        (ScheduleConfig("constant", warmup_steps=60), 10, 1),  # longer than the run was
        (ScheduleConfig("step"), 5, None),
        (ScheduleConfig("step"), 6, 6),  # the rate dropped after round 5
        (ScheduleConfig("step", milestones=()), 10, None),
        (ScheduleConfig("cosine"), 0, None),
        (ScheduleConfig("cosine"), 1, 1),
    ],
)
def test_rates_so_far(schedule: ScheduleConfig, done: int, expected: int | None) -> None:
    assert first_difference(schedule, 10, 20, done, {2, 5}) == expected
