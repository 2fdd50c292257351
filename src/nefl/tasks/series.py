"""Series of numbers over time."""

from nefl.data.columns import Dataset
from nefl.data.series import SERIES
from nefl.tasks.tables import number_task
from nefl.tasks.task import Task


def series_task(data: Dataset) -> Task:
    """Return the task of series: their class, or a number."""
    return number_task(data, SERIES, "series")
