"""From a fleet to a family: every kind of device the best member that it can train and run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from nefl.config import MemberConfig, PublishedConfig, RunConfig
from nefl.config.learning import LORA
from nefl.errors import ConfigError
from nefl.estimate import check_run
from nefl.fleet.candidates import WIDTHS, Candidates, Mask, list_candidates, size_score
from nefl.fleet.chain import Group, choose_chain
from nefl.fleet.costs import Costs, Training, costs_of
from nefl.fleet.explaining import explain, no_coverage, nothing_fits
from nefl.fleet.kinds import FleetFile
from nefl.methods import method_of
from nefl.models.ranks import read_lora_options
from nefl.models.table import MODELS
from nefl.nesting.coverage import expected_coverage
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.spec import Family
from nefl.own_code import own_code
from nefl.references import is_reference
from nefl.running.assembly import Setting
from nefl.server.devices import Numbers

COVERAGE = 0.05
"""The share of the population that must be able to train each element."""

ROUNDING = 1e-9
"""What shares of a population may miss by being added up."""

ATTEMPTS = 30
"""How often budgets are narrowed where the method costs more than its members alone."""

Score = Callable[[Candidates, Sequence[Group]], Numbers]
"""Gives each candidate a score above 0, knowing which of them fit which kinds of device."""

_listed_once = lru_cache(maxsize=8)(list_candidates)


@dataclass(frozen=True)
class Placement:
    """What one kind of device gets.

    Attributes:
        name: the kind.
        share: how much of the population it is.
        member: the number of its submodel, from 1.
        uses: what that takes of each budget, by the budget's name.
        limits: the budgets.
        why: why it is no larger one.
    """

    name: str
    share: float
    member: int
    uses: Mapping[str, float]
    limits: Mapping[str, float]
    why: str


@dataclass(frozen=True)
class FittedFamily:
    """A family for a fleet.

    Attributes:
        config: the run that trains it.
        family: its members.
        profiles: what they cost in that run.
        described: what each is, in a few words.
        scores: the score of each.
        placements: what each kind of device gets, in the order of the fleet.
        coverage: the share of the population that trains the least trained element.
        notes: what is missing, though it does not forbid to run it.
    """

    config: RunConfig
    family: Family
    profiles: tuple[SubmodelProfile, ...]
    described: tuple[str, ...]
    scores: tuple[float, ...]
    placements: tuple[Placement, ...]
    coverage: float
    notes: tuple[str, ...]


def fit_family(
    config: RunConfig,
    fleet: FleetFile,
    *,
    members: int = 5,
    coverage: float = COVERAGE,
    score: Score | None = None,
) -> FittedFamily:
    """Design a family for a fleet.

    Args:
        config: the run that it is for: model, method, data, local training. Its submodels and its
            clients' capability are replaced.
        fleet: the devices.
        members: how many members there may be, the full model among them.
        coverage: the share of the population that must be able to train each element.
        score: which of two members is better, if not by their size.

    Raises:
        ConfigError: naming the devices and the budgets that nothing fits, or the method that
            cannot have such a family.
    """
    if members < 1 or not 0 <= coverage <= 1:
        raise ConfigError(f"members {members}, coverage {coverage}: give 1 or more, and 0 to 1")
    setting, _ = check_run(_with_full_alone(config))
    candidates = _candidates(setting)
    fits = _Fits(setting, fleet)
    full = len(candidates) - 1
    wanted = 1.0 if members == 1 else coverage
    scores: Numbers | None = None
    for _ in range(ATTEMPTS):
        groups = fits.groups(candidates.costs)
        if any(not group.fits.any() for group in groups):
            raise nothing_fits(fits.uses(candidates.costs), fits.limits, candidates, config, fleet)
        able = sum(group.share for group in groups if group.fits[full])
        if not able or able < wanted - ROUNDING:
            uses = fits.uses(candidates.costs)
            remedy = "more --members" if members == 1 else "a lower --coverage" if able else ""
            raise no_coverage(able, wanted, uses, fits.limits, candidates, fleet, groups, remedy)
        if scores is None:  # not before it is known that there is something to score
            scores = size_score(candidates) if score is None else score(candidates, groups)
        chosen = choose_chain(candidates, scores, groups, members)
        kept = sorted({*chosen.values(), full}, key=lambda c: candidates.costs.params[c])
        listed = tuple(candidates.member(c) for c in kept)
        ready, notes = check_run(_with_fleet(config, fleet, listed))
        profiles = ready.profiles()
        costs = costs_of(ready.family, profiles, ready.task.signature)
        numbers = [kept.index(chosen[kind]) for kind in range(len(fleet.devices))]
        if fits.narrow(costs, numbers):
            continue
        return FittedFamily(
            config=ready.config,
            family=ready.family,
            profiles=profiles,
            described=tuple(map(candidates.describe, kept)),
            scores=tuple(float(scores[c]) for c in kept),
            placements=_placements(fits, costs, numbers, candidates, kept, scores, fleet),
            coverage=_coverage(ready.family, fleet, numbers),
            notes=(*notes, *fits.notes()),
        )
    raise ConfigError(
        f"model.method {config.model.method}: after {ATTEMPTS} attempts its members still cost "
        "more than the devices have; take another method, or larger budgets"
    )


class _Fits:
    """Which members keep to the budgets of a fleet; budgets become narrower on demand."""

    def __init__(self, setting: Setting, fleet: FleetFile) -> None:
        self._fleet = fleet
        self._epochs = setting.config.local.epochs
        self._examples = int(setting.partition.sizes.max())
        self.limits = [fleet.limits(kind) for kind in fleet.devices]
        self._narrowed = [dict(limits) for limits in self.limits]

    def notes(self) -> list[str]:
        """Say which kinds have fewer examples than clients of the run that simulates them."""
        every = self._fleet.devices if self._fleet.deadline is not None else ()
        return [
            f"device {kind.name!r} has {kind.examples} examples, and clients of this run up to "
            f"{self._examples}: such a one takes longer, and sits out where nothing is in time"
            for kind in every
            if kind.examples is not None and kind.examples < self._examples
        ]

    def uses(self, costs: Costs) -> list[dict[str, Numbers]]:
        """Return what submodels take of each budget, for each kind."""
        every = self._fleet.devices
        found = [self._fleet.uses(kind, costs, self._epochs, self._examples) for kind in every]
        return [
            {name: used[name] for name in limits}
            for used, limits in zip(found, self.limits, strict=True)
        ]

    def groups(self, costs: Costs) -> list[Group]:
        """Return each kind with the candidates that fit it."""
        found = []
        for number, used in enumerate(self.uses(costs)):
            fits: Mask = np.ones(len(costs.params), dtype=np.bool_)
            for name, limit in self._narrowed[number].items():
                fits &= used[name] <= limit
            share = self._fleet.share(self._fleet.devices[number])
            found.append(Group((number,), share, fits))
        return found

    def narrow(self, costs: Costs, numbers: Sequence[int]) -> bool:
        """Narrow the budgets that members break as they really cost; return whether any is."""
        broken = False
        for kind, used in enumerate(self.uses(costs)):
            for name, limit in self.limits[kind].items():
                there = float(used[name][numbers[kind]])
                if there > limit:
                    broken = True
                    self._narrowed[kind][name] *= 0.99 * limit / there
        return broken


def _with_full_alone(config: RunConfig) -> RunConfig:
    """Return the run with the full model alone, to see whether it can be and what it learns.

    Raises:
        ConfigError: if its method cannot have a family that is designed.
    """
    model, row = config.model, method_of(config.model)
    if row.members != "scaled":
        raise ConfigError(
            f"model.method {model.method}: trains one submodel alone, so there is no family to "
            "design; take a method with submodels, such as nefl-wd"
        )
    if row.exits != "none":
        raise ConfigError(
            f"model.method {model.method}: has early classifiers, which a design does not place; "
            "take a method without, such as nefl-wd, or list the members yourself"
        )
    full, options = MemberConfig(), dict(model.options)
    if model.name == LORA:
        known = read_lora_options(options)
        deepest = None if known.depths is None else (max(known.depths),)
        full = MemberConfig(rank=max(known.ranks), blocks=deepest)
        options = {k: v for k, v in options.items() if k not in ("ranks", "depths")}
    alone = replace(model, ratios=None, members=(full,), options=options)
    return replace(config, model=alone, published=PublishedConfig())


def _with_fleet(
    config: RunConfig, fleet: FleetFile, members: tuple[MemberConfig, ...]
) -> RunConfig:
    """Return the run with a designed family, over the fleet's devices."""
    alone = _with_full_alone(config)
    clients = replace(
        config.clients,
        capability="devices",
        devices=tuple(kind.device for kind in fleet.devices),
        deadline=fleet.deadline,
        fluctuation=fleet.fluctuation,
    )
    names = ", ".join(kind.name for kind in fleet.devices)
    return replace(
        alone,
        about=f"{config.model.name}, a family for {names}",
        model=replace(alone.model, members=members),
        clients=clients,
    )


def _candidates(setting: Setting) -> Candidates:
    config, family = setting.config, setting.family
    name, scaling = config.model.name, method_of(config.model).scaling
    own, rank = is_reference(name), config.model.members[0].rank or 0
    widths: tuple[float, ...] = WIDTHS
    if rank:
        widths = tuple(r / rank for r in range(1, rank + 1))
    elif scaling == "depth" and not own:
        widths = WIDTHS[-1:]
    # What the user's own code builds may have no hash to be remembered by.
    listed = list_candidates if own else _listed_once
    with own_code(f"{name}: its members of other widths and depths"):
        return listed(
            family,
            setting.task.signature,
            widths=widths,
            deep=own or scaling != "width",
            training=Training.of_run(config),
            alike=name in MODELS or name == LORA,
            rank=rank,
        )


def _placements(
    fits: _Fits,
    costs: Costs,
    numbers: Sequence[int],
    candidates: Candidates,
    kept: Sequence[int],
    scores: Numbers,
    fleet: FleetFile,
) -> tuple[Placement, ...]:
    exact, rough = fits.uses(costs), fits.uses(candidates.costs)
    groups = fits.groups(candidates.costs)
    return tuple(
        Placement(
            name=kind.name,
            share=fleet.share(kind),
            member=numbers[i] + 1,
            uses={name: float(used[numbers[i]]) for name, used in exact[i].items()},
            limits=fits.limits[i],
            why=explain(
                candidates,
                scores,
                kept,
                numbers[i],
                groups[i].fits,
                rough[i],
                fits.limits[i],
                [
                    other.name
                    for j, other in enumerate(fleet.devices)
                    if j != i and numbers[j] == numbers[i]
                ],
            ),
        )
        for i, kind in enumerate(fleet.devices)
    )


def _coverage(family: Family, fleet: FleetFile, numbers: Sequence[int]) -> float:
    """Return the share of the population that trains the least trained element."""
    shares = [0.0] * len(family)
    for kind, number in zip(fleet.devices, numbers, strict=True):
        shares[number] += fleet.share(kind)
    return expected_coverage(family, 1, shares).minimum
