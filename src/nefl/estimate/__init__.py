"""What a run will cost, told before it starts: work, memory, traffic, and time on this machine.

The family, the partition and the choice of clients are the run's own. Data that is not at hand is
stood in for by the catalogue's facts; only the time is measured rather than computed.
"""

from nefl.config import RunConfig
from nefl.estimate.checking import check_run
from nefl.estimate.cost import RunCost, SubmodelCost, cost_of
from nefl.estimate.timing import measure_steps
from nefl.running.compiling import settled

__all__ = ["RunCost", "SubmodelCost", "check_run", "estimate_run"]


def estimate_run(config: RunConfig, *, timed: bool = True) -> RunCost:
    """Check a run and cost it out.

    Args:
        config: the run.
        timed: whether to spend some seconds on measuring local steps; without that the time the
            run will take stays unknown.

    Raises:
        NeflError: if the run could never start as it is.
    """
    setting, notes = check_run(config)
    if timed:
        setting, reason = settled(setting)
        if reason:
            notes = (
                *notes,
                f"local.compile is {str(setting.config.local.compile).lower()}: {reason}",
            )
    profiles = setting.profiles()
    if not timed:
        return cost_of(setting, profiles, notes)
    alone = setting.alone()
    plain = alone.profiles() if setting.family.within else profiles
    return cost_of(setting, profiles, notes, measure_steps(alone, plain))
