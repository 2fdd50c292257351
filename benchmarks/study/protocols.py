"""The protocols of docs/study.md: questions, and what is set beside each other to answer them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nefl.recipes import recipe_names

TUNING_SEED = 9
STEPS: Mapping[str, Mapping[str, Any]] = {
    "mean": {},
    "momentum": {"server.step.name": "momentum", "server.step.momentum": 0.6},
}
"""The grid of server steps, the same for every arm; rates are the steps' own."""

FIRST = "small-cifar10-resnet20_pooled-"
SMALL = f"{FIRST}nefl-d"
PAPER_RATIOS = "[0.04,0.16,0.36,0.64,1.0]"
MEMBERS = range(1, 6)


@dataclass(frozen=True)
class Arm:
    """A way of training: settings, and which other arm's server step it takes.

    Attributes:
        name: what its runs are called.
        settings: what it sets besides the protocol.
        tuned_as: the arm whose tuned step it takes; its own if left out.
        step: the step it has by itself, where it is not to be tuned.
        more: what it sets in place of the protocol's settings.
        seeds: how many seeds it has at the most.
    """

    name: str
    settings: Mapping[str, Any]
    tuned_as: str = ""
    step: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 3


def method(name: str, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"model.method": name}
    return found | {f"model.method_options.{key}": value for key, value in options.items()}


def exclusive(family: str, members: Sequence[int]) -> list[Arm]:
    """Return members of a family alone, each trained by those able; the middle one is tuned."""
    return [
        Arm(
            f"exclusive-{member}",
            method("exclusive", member=member, family=family),
            tuned_as="" if member == 3 else "exclusive-3",
        )
        for member in members
    ]


WITHIN: Mapping[str, Mapping[str, Any]] = {"nefl-d": {}, "nefl-wd": {"leave": 1.0}}
"""How members are trained within each family, chosen on the tuning seed; docs/study.md tells."""


def within(family: str, **settings: Any) -> Arm:
    return Arm("within", method("within", family=family, **WITHIN[family]), **settings)


@dataclass(frozen=True)
class Protocol:
    """A question, and what is set beside each other to answer it.

    Attributes:
        recipe: what its runs start from.
        settings: what they all set besides.
        family: the nested family that it is about.
        arms: further arms than those that every protocol has.
        alone: the members that are trained alone too.
        needs_data: whether it is on CIFAR-10.
        tuned_on: the protocol whose server steps its arms take; its own if left out.
        only: its arms, where it does not have those that every protocol has.
        divides: the protocol whose clients it divides among members alone; its families are shown
            beside them.
        varies: the protocol that it has further arms of; all of that one's are shown too.
    """

    recipe: str
    family: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    arms: Sequence[Arm] = ()
    alone: Sequence[int] = MEMBERS
    needs_data: bool = True
    tuned_on: str = ""
    only: Sequence[Arm] = ()
    divides: str = ""
    varies: str = ""

    def all_arms(self) -> list[Arm]:
        """Return what is set beside each other."""
        return list(self.only) or [
            Arm(self.family, method(self.family)),
            within(self.family),
            Arm("fedavg-small", method("fedavg-small")),
            Arm("fedavg", method("fedavg")),
            *exclusive(self.family, self.alone),
            *self.arms,
        ]


RIVALS = (
    Arm("depthfl-full", method("depthfl-full", slow_start=33), step="mean"),
    Arm("depthfl-sd", method("depthfl-sd")),
)
METHODS = [
    name.removeprefix(FIRST)
    for name in recipe_names()
    if name.startswith(FIRST) and not name.endswith("-dirichlet") and "nefl-co" not in name
]
THREE_SEEDS = (
    *("fedavg-small", "depthfl-sd", "nefl-w", "nefl-d"),
    *("nefl-wd", "nefl-wd-nl", "nefl-wd-steps", "nefl-wd-shared"),
)
"""Methods that the first study sets apart by few points; the others have one seed."""


def paper_arms(names: Sequence[str], three: Sequence[str]) -> list[Arm]:
    """Return methods as the paper has them, with the plain average."""
    return [Arm(name, method(name), step="mean", seeds=3 if name in three else 1) for name in names]


LARGER = MEMBERS[1:]
"""Members of `nefl-wd` that are trained alone by the able; the first is `fedavg-small`."""

CAPACITY: dict[str, Any] = {
    "rounds": 200,
    "server.evaluate_every": 50,
    "model.ratios": PAPER_RATIOS,
    "data.train": 50000,
    "clients.count": 500,
}
"""Small submodels, and enough data."""


def nesting(
    name: str, family: str = "nefl-wd", *, more: Mapping[str, Any] | None = None, **options: Any
) -> Arm:
    """Return one way of nesting width: like `within` in `capacity` but for what is given."""
    how = method("within", family=family, **{"leave": 1.0, **options})
    return Arm(name, how, tuned_as="within", more=more or {}, seeds=1)


def longer(name: str, like: Arm, seeds: int = 1) -> Arm:
    """Return an arm of `capacity` with twice the rounds."""
    tuned_as = like.tuned_as or like.name
    return replace(
        like, name=name, more={**like.more, "rounds": 400}, tuned_as=tuned_as, seeds=seeds
    )


SMALL_FIRST = {"clients.small_first": "[20,60]"}
SHARED = nesting("corner-shared", leave=0.0)
FADING = nesting("fading", leave=0.0, fade=0.0)
SMALL_FIRST_SHARED = nesting("small-first-shared", leave=0.0, more=SMALL_FIRST)
BETTER_AT_FIRST = (
    SHARED,
    nesting("corner-half-left", leave=0.5),
    FADING,
    nesting("small-first", more=SMALL_FIRST),
    SMALL_FIRST_SHARED,
    nesting("small-first-drawn", leave=0.0, which="smallest+drawn", more=SMALL_FIRST),
)
"""Ways that were most above `within` on average with the first seed, and some of them together."""


def small_first(name: str, rounds: str) -> Arm:
    """Return what did best in `nesting`, in a run with other rounds."""
    return replace(SMALL_FIRST_SHARED, name=name, more={"clients.small_first": rounds}, seeds=3)


WAYS_TO_NEST = (
    *(replace(arm, seeds=3) for arm in BETTER_AT_FIRST),
    nesting("constant-steps", family="nefl-wd-nl"),
    nesting("turns", more={"clients.choice": "turns"}),
    nesting("own-tensors", leave=0.0, trains="own"),
    nesting("all", which="all"),
    nesting("taught", teacher="largest"),
    nesting("shared-norms", family="nefl-wd-steps"),
    replace(
        nesting("own-classifier"),
        settings=method("benchmarks.study.own_classifier:within"),
    ),
    nesting("narrower", more={"model.ratios": "[0.2,0.4,0.6,0.8,1.0]"}),
    longer("more-rounds", within("nefl-wd")),
    longer("nefl-wd-more-rounds", Arm("nefl-wd", method("nefl-wd")), seeds=3),
    longer("corner-shared-more-rounds", SHARED, seeds=3),
    longer("fading-more-rounds", FADING),
    longer("small-first-shared-more-rounds", SMALL_FIRST_SHARED, seeds=3),
    longer("small-more-rounds", Arm("fedavg-small", method("fedavg-small")), seeds=3),
)
"""What else could end the trade between the smallest submodel and the others."""

PROTOCOLS = {
    "first-iid": Protocol(
        SMALL,
        "nefl-d",
        arms=(
            *RIVALS,
            Arm("nefl-wd", method("nefl-wd")),
            replace(within("nefl-wd"), name="within-wd", tuned_as="within"),
            replace(SHARED, name="within-wd-shared", seeds=3),
            replace(FADING, name="within-wd-fading", seeds=3),
            small_first("within-wd-small-first", "[10,30]"),
            Arm("within-constant", method("within", family="nefl-d-nl"), tuned_as="within"),
        ),
    ),
    "first-dirichlet": Protocol(f"{SMALL}-dirichlet", "nefl-d", arms=RIVALS, tuned_on="first-iid"),
    "tiers": Protocol(
        SMALL,
        "nefl-d",
        {"partition.kind": "tiers"},
        arms=(
            Arm("within-drawn", method("within", which="smallest+drawn"), tuned_as="within"),
            Arm("within-all", method("within", which="all"), tuned_as="within"),
        ),
        tuned_on="first-iid",
    ),
    "strokes": Protocol(
        "digit-strokes",
        "nefl-wd",
        arms=(small_first("within-small-first", "[6,18]"),),
        alone=LARGER,
        needs_data=False,
    ),
    "capacity": Protocol(
        SMALL,
        "nefl-wd",
        CAPACITY,
        alone=LARGER,
        tuned_on="first-iid",
    ),
    "first-divided": Protocol(
        SMALL,
        "nefl-d",
        {"clients.per_round": 1},
        only=exclusive("nefl-d", MEMBERS),
        tuned_on="first-iid",
        divides="first-iid",
    ),
    "capacity-divided": Protocol(
        SMALL,
        "nefl-wd",
        CAPACITY | {"clients.per_round": 1},
        only=[Arm("fedavg-small", method("fedavg-small")), *exclusive("nefl-wd", LARGER)],
        tuned_on="first-iid",
        divides="capacity",
    ),
    "long": Protocol(
        SMALL,
        "nefl-d",
        {"rounds": 400, "server.evaluate_every": 50},
        alone=(1, 3, 5),
        tuned_on="first-iid",
    ),
    "nesting": Protocol(
        SMALL,
        "nefl-wd",
        CAPACITY,
        only=WAYS_TO_NEST,
        tuned_on="first-iid",
        varies="capacity",
    ),
    "methods-iid": Protocol(SMALL, "nefl-d", only=paper_arms(METHODS, THREE_SEEDS)),
}


def settings_of(protocol: Protocol, arm: Arm, step: str, seed: int, data: Path) -> list[str]:
    given = {
        **protocol.settings,
        **arm.settings,
        **arm.more,
        **STEPS[step],
        "engine.name": "serial",
    }
    if protocol.needs_data:
        given["data.root"] = data
    flags = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    return ["train", protocol.recipe, "--seed", str(seed), *flags]
