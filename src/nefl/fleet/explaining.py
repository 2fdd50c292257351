"""Why a device has the member that it has, and why a fleet has no family, in words."""

from collections.abc import Mapping, Sequence

import numpy as np

from nefl.config import RunConfig
from nefl.errors import ConfigError
from nefl.fleet.candidates import Candidates, Mask
from nefl.fleet.chain import Group, best_of
from nefl.fleet.kinds import LATENCY, MEMORY, RUN_MEMORY, TIME, FleetFile
from nefl.server.devices import Numbers
from nefl.wording import show_bytes

REMEDIES = {
    MEMORY: "more memory, a smaller local.batch_size",
    TIME: "a later deadline, fewer local.epochs or examples",
    RUN_MEMORY: "more inference_memory",
    LATENCY: "a longer latency",
}
"""What would help, by the budget that is too small."""

BY_METHOD = "with what the method adds"
"""Begins to say why a member does not fit that would fit by itself."""

NOTABLE = 0.02
"""A score that is higher by this share is worth a word."""


def show_amount(budget: str, amount: float) -> str:
    """Write what a budget has, or what is taken of it, for people."""
    if budget in (MEMORY, RUN_MEMORY):
        return show_bytes(amount)
    if amount >= 1:
        return f"{amount:.3g} s" if amount < 1000 else f"{amount:.0f} s"
    return f"{amount * 1e3:.3g} ms"


def explain(
    candidates: Candidates,
    scores: Numbers,
    kept: Sequence[int],
    number: int,
    fits: Mask,
    uses: Mapping[str, Numbers],
    limits: Mapping[str, float],
    others: Sequence[str],
) -> str:
    """Say why a kind of device has no larger member than it has.

    Args:
        candidates: what was chosen from.
        scores: their scores.
        kept: the members of the family, as candidates.
        number: which of them it has, from 0.
        fits: which candidates fit the device.
        uses: what each takes of its budgets.
        limits: the budgets.
        others: the kinds that have the same member.
    """
    mine = kept[number]
    if number == len(kept) - 1:
        return "it can train and run the full model"
    shared = f"shared with {', '.join(others)}; " if others else ""
    larger = _steps(candidates, mine)
    broken = [c for c in larger if not fits[c]]
    best = best_of(scores, fits)
    if len(broken) == len(larger):
        said = f"{shared}{_nearest_break(candidates, broken, uses, limits)}"
    else:
        inside = candidates.inside(kept[number + 1])
        open_to_it = [c for c in larger if fits[c] and inside[c]]
        reason = "a larger one that fits would not be inside the next member; "
        if open_to_it and max(scores[c] for c in open_to_it) <= scores[mine]:
            reason = "a larger one that fits scores no more; "
        said = (shared or reason).removesuffix("; ")
    if scores[best] > (1 + NOTABLE) * scores[mine]:
        said += (
            f"; by itself it could have {candidates.describe(best)}, which scores "
            f"{scores[best] / scores[mine] - 1:.0%} more"
        )
    return said


def _steps(candidates: Candidates, mine: int) -> list[int]:
    """Return the candidates one step larger: a block more in one stage, or the next width."""
    around = candidates.around(mine)
    differs = candidates.place != candidates.place[mine]
    found = []
    for axis in range(differs.shape[1]):
        others = np.delete(differs, axis, axis=1).any(axis=1)
        along = np.flatnonzero(around & differs[:, axis] & ~others)
        if len(along):
            found.append(int(along[candidates.place[along, axis].argmin()]))
    return found


def _nearest_break(
    candidates: Candidates,
    broken: Sequence[int],
    uses: Mapping[str, Numbers],
    limits: Mapping[str, float],
) -> str:
    """Say what the step that comes nearest to fitting would take too much of."""

    def excess(c: int) -> float:
        return max(float(uses[name][c]) / limit for name, limit in limits.items())

    near = min(broken, key=excess)
    budget = max(limits, key=lambda name: float(uses[name][near]) / limits[name])
    used, limit = float(uses[budget][near]), limits[budget]
    if used <= limit:  # by itself it would fit
        return (
            f"{BY_METHOD} {candidates.describe(near)} would take more than "
            f"{show_amount(budget, limit)} {budget}"
        )
    return (
        f"{candidates.describe(near)} would take {show_amount(budget, used)} of "
        f"{show_amount(budget, limit)} {budget}"
    )


def nothing_fits(
    uses: Sequence[Mapping[str, Numbers]],
    limits: Sequence[Mapping[str, float]],
    candidates: Candidates,
    config: RunConfig,
    fleet: FleetFile,
) -> ConfigError:
    """Return the error for devices that fit no member at all, with each budget that is too small.

    Args:
        uses: what candidates take of each budget, for each kind.
        limits: the budgets of each kind.
        candidates: the members that there are.
        config: the run.
        fleet: the devices.
    """
    said, remedies = [], []
    for kind, used, allowed in zip(fleet.devices, uses, limits, strict=True):
        for budget, limit in allowed.items():
            least = int(used[budget].argmin())
            if used[budget][least] > limit:
                said.append(
                    f"device {kind.name!r} has {show_amount(budget, limit)} {budget}, and the "
                    f"least that a member takes is {show_amount(budget, used[budget][least])} "
                    f"({candidates.describe(least)})"
                )
                remedies.append(REMEDIES[budget])
    if not said:  # each budget has its member, and none has all: only where a method costs more
        said.append("no member keeps to all budgets of a device once the method's cost is counted")
        remedies.append("larger budgets")
    given = ", ".join(dict.fromkeys(remedies))
    return ConfigError(
        f"nothing fits: {'; '.join(said)}; give {given}, or a smaller model than "
        f"{config.model.name}, or leave the device out"
    )


def no_coverage(
    able: float,
    wanted: float,
    uses: Sequence[Mapping[str, Numbers]],
    limits: Sequence[Mapping[str, float]],
    candidates: Candidates,
    fleet: FleetFile,
    groups: Sequence[Group],
    remedy: str,
) -> ConfigError:
    """Return the error for a fleet of which too few can train the full model.

    Args:
        able: the share of the population that can.
        wanted: the share that must.
        uses: what candidates take of each budget, for each kind.
        limits: the budgets of each kind.
        candidates: the members that there are.
        fleet: the devices.
        groups: the kinds, with the candidates that fit them.
        remedy: what would help besides another model or other budgets, if anything.
    """
    full = len(candidates) - 1
    lacking = []
    for kind, used, allowed, group in zip(fleet.devices, uses, limits, groups, strict=True):
        short = {b: float(used[b][full]) / limit for b, limit in allowed.items()}
        if not group.fits[full]:
            budget = max(short, key=lambda name: short[name])
            takes = f"it takes {show_amount(budget, float(used[budget][full]))}"
            lacking.append(
                f"{kind.name!r} ({fleet.share(kind):.0%}) has "
                f"{show_amount(budget, allowed[budget])} {budget} and "
                + (takes if short[budget] > 1 else f"{BY_METHOD} it takes more")
            )
    who = f"only {able:.0%} of the population" if able else "no device"
    held = np.sum([group.share * group.fits for group in groups], axis=0)
    enough = held >= max(wanted, 1e-9)
    size = candidates.costs.params
    hint = ""
    if enough.any():
        largest = best_of(size, enough)
        hint = (
            f"; the largest member that enough could train is {candidates.describe(largest)} "
            f"({size[largest] / size[full]:.0%} of the parameters)"
        )
    helpful = "a smaller model, larger budgets" + (f", or {remedy}" if remedy else "")
    return ConfigError(
        f"coverage: {who} can train the full model, and at least {wanted:.0%} must, or its outer "
        f"parts are hardly ever trained: {'; '.join(lacking)}{hint}; take {helpful}"
    )
