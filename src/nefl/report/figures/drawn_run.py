"""A run as figures draw it: what follows from its folder, the line it counts in, what it lacks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from nefl.errors import NeflError
from nefl.measured import MeasuredBy
from nefl.nesting.spec import Family
from nefl.report.reading.costs import Costs, assignments, client_sizes, costs_of
from nefl.report.reading.gathering import leading_metric, line_names
from nefl.report.reading.log_lines import Assignment
from nefl.report.reading.rebuilt import family_again
from nefl.report.reading.runs import Run
from nefl.report.reading.weights import OfSubmodel, l1_norms, newest_state, step_sizes

Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class DrawnRun:
    """A run and what follows from its folder, each worked out when it is first asked for.

    Attributes:
        run: the run.
        gathered_as: the line of figures in which it counts, if not one of its own.
        missing: what could not be told, and why; filled as it is found out.
    """

    run: Run
    gathered_as: str = ""
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The line of figures in which it counts."""
        return self.gathered_as or self.run.name

    @property
    def names(self) -> Record:
        """What every record of it begins with: the run, and the line it counts in."""
        return {"run": self.run.name, "line": self.line}

    @cached_property
    def costs(self) -> Costs:
        """What its submodels cost."""
        found = costs_of(self.run)
        if not found.profiles:
            self.missing["costs"] = found.unknown
        return found

    @cached_property
    def assignments(self) -> list[Assignment] | None:
        """Who trained what in each round."""
        return assignments(self.run, self.costs, client_sizes(self.run))

    @cached_property
    def _family(self) -> tuple[Family | None, str]:
        try:
            return family_again(self.run), ""
        except NeflError as error:
            return None, str(error)

    def family_for(self, gap: str) -> Family | None:
        """Return its family; where it cannot be built again, `missing` says so under that name."""
        family, why = self._family
        if family is None:
            self.missing[gap] = why
        return family

    @cached_property
    def weights(self) -> tuple[list[OfSubmodel], list[OfSubmodel]]:
        """Step sizes by block, and L1 norms by layer."""
        family = self.family_for("weights")
        if family is None:
            return [], []
        state, problem = newest_state(self.run, family)
        if state is None:
            self.missing["weights"] = problem
            return [], []
        return step_sizes(state, family), l1_norms(state, family)


def drawn_runs(runs: Sequence[Run], *, every_run: bool = False) -> list[DrawnRun]:
    """Return what runs' folders tell; runs that differ by the seed alone share a line.

    Args:
        runs: the runs.
        every_run: whether each has a line of its own instead.
    """
    lines = {} if every_run else line_names(runs)
    return [DrawnRun(run, lines.get(run.name, "")) for run in runs]


def left_out(drawn: Sequence[DrawnRun], *gaps: str) -> list[str]:
    """Say which runs are not in a figure and why, those with one reason together.

    Args:
        drawn: the runs, after the figure was made.
        gaps: what to look for in `missing`; everything, if nothing is named.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for each in drawn:
        for gap, why in each.missing.items():
            if not gaps or gap in gaps:
                found.setdefault((gap, why), []).append(each.run.name)
    return [f"{', '.join(names)}: not in {gap}: {why}" for (gap, why), names in found.items()]


def metric_of(drawn: Sequence[DrawnRun]) -> MeasuredBy:
    """Return what a figure of some runs is drawn by."""
    return leading_metric([each.run for each in drawn])


def measured_alike(drawn: Sequence[DrawnRun]) -> list[DrawnRun]:
    """Return the runs that a figure of the primary metric has."""
    metric = metric_of(drawn)
    return [each for each in drawn if each.run.evaluated and each.run.metric == metric]
