"""Who takes part, what the server does, and in what form weights travel between them."""

import math
from dataclasses import dataclass, field
from typing import Literal

from nefl.config.checks import Part, require

MAX_PAUSE = 10**6
"""The most rounds that a client may be passed over."""

LONGEST_HOLD = 1e6
"""The most times that a round may last as long as it took to have enough updates."""

MOST_ASKED = 10.0
"""The most clients that a round may ask, in times of those that it wants."""


@dataclass(frozen=True)
class DeviceConfig(Part):
    """A kind of device.

    Attributes:
        name: what it is called in reports.
        share: how common it is, relative to the others.
        memory: bytes that training may take.
        macs_per_second: multiply-accumulates it computes in a second.
        bandwidth: bytes it sends or receives in a second.
        fails: the share of its rounds in which it drops out and is not heard of again.
    """

    name: str
    memory: float
    macs_per_second: float
    bandwidth: float
    share: float = 1.0
    fails: float = 0.0

    def __post_init__(self) -> None:
        """Refuse devices that cannot exist."""
        for key in ("memory", "macs_per_second", "bandwidth", "share"):
            require(getattr(self, key) > 0, f"device {self.name!r}: {key} must be above 0")
        require(
            0 <= self.fails < 1,
            f"device {self.name!r}: fails is {self.fails}: give 0 or more, below 1",
        )


@dataclass(frozen=True)
class ClientsConfig(Part):
    """Who takes part, and what each can do.

    Attributes:
        count: clients in the population.
        per_round: clients whose updates a round wants.
        capability: `tiers`, the paper's rule; `fixed`, always the submodel of one's tier; or
            `devices`, the largest submodel that fits the device in this round.
        spread: for `tiers`, how far a client strays from its tier.
        devices: for `devices`, the kinds of device.
        fluctuation: for `devices`, how much memory, speed and bandwidth vary from round to
            round: the standard deviation of their logarithm.
        deadline: for `devices`, seconds in which a client wants to be done with a round.
        choice: how a client comes to one of the submodels that it can train: `drawn`, by itself;
            or `turns`, so that a round trains as many different ones as it can.
        small_first: two numbers of rounds: up to the first only the smallest submodel is trained,
            from the second on all are; those between are unlocked in turn. As the method has it
            if left out; with 0 and 1 all are trained from the first round on.
        over_select: how many times as many clients are asked; the round closes when it has what it
            wants, and what comes later is discarded.
        hold: with more asked than wanted, every submodel has its share of the places; a round that
            has enough updates keeps these for late ones until it lasts so many times as long. At 1
            places are whoever's comes first.
        close_after: seconds after which a round closes with a quorum (`server.quorum`).
        pause: rounds that a client is passed over after a failure, twice as many after every
            further one in a row; 0 for none.
        longest_pause: the most rounds that it is passed over.
        prefer: who is drawn more often: nobody (`any`), or those whose updates have not counted for
            long (`unheard`), in proportion to the rounds since.
    """

    count: int = 100
    per_round: int = 10
    capability: Literal["tiers", "fixed", "devices"] = "tiers"
    spread: int = 2
    devices: tuple[DeviceConfig, ...] = ()
    fluctuation: float = 0.3
    deadline: float | None = None
    choice: Literal["drawn", "turns"] = "drawn"
    small_first: tuple[int, int] | None = None
    over_select: float = 1.0
    hold: float = 2.0
    close_after: float | None = None
    pause: int = 0
    longest_pause: int = 64
    prefer: Literal["any", "unheard"] = "any"

    def __post_init__(self) -> None:
        """Refuse cohorts that cannot be drawn."""
        require(
            self.small_first is None or 0 <= self.small_first[0] < self.small_first[1],
            f"clients.small_first is {self.small_first}: give two rising numbers of rounds",
        )
        require(self.count >= 1, f"clients.count is {self.count}: give 1 or more")
        require(
            1 <= self.per_round <= self.count,
            f"clients.per_round is {self.per_round}: give 1 to clients.count, {self.count}",
        )
        require(self.spread >= 0, f"clients.spread is {self.spread}: give 0 or more")
        require(
            0 <= self.fluctuation <= 3,
            f"clients.fluctuation is {self.fluctuation}: give a number from 0 to 3",
        )
        require(
            (self.capability == "devices") == bool(self.devices),
            "clients.devices belongs to capability 'devices', and that needs at least one",
        )
        for key in ("deadline", "close_after"):
            value = getattr(self, key)
            require(value is None or value > 0, f"clients.{key} must be above 0")
        require(
            1 <= self.over_select <= MOST_ASKED,
            f"clients.over_select is {self.over_select}: give 1 to {MOST_ASKED:g}",
        )
        require(
            1 <= self.hold <= LONGEST_HOLD,
            f"clients.hold is {self.hold}: give 1 to {LONGEST_HOLD:g}",
        )
        require(
            0 <= self.pause <= self.longest_pause <= MAX_PAUSE,
            f"clients.pause is {self.pause}, longest_pause {self.longest_pause}: give rounds from "
            f"0 to {MAX_PAUSE}, the longest last",
        )
        failing = next((kind.name for kind in self.devices if kind.fails), None)
        require(
            failing is None or self.close_after is not None,
            f"device {failing!r}: fails is given, and a round would wait for it without end; give "
            "clients.close_after too",
        )

    @property
    def unlocks(self) -> tuple[int, int] | None:
        """When submodels are unlocked; None where all are trained from the first round on."""
        return None if self.small_first is None or self.small_first[1] <= 1 else self.small_first

    @property
    def asked(self) -> int:
        """How many clients a round asks, where so many are there."""
        return min(self.count, math.ceil(round(self.per_round * self.over_select, 6)))

    @property
    def keeps_ledger(self) -> bool:
        """Whether who takes part depends on how clients did in earlier rounds."""
        return self.pause > 0 or self.prefer != "any"

    @property
    def closes_early(self) -> bool:
        """Whether a round may close before all whom it asked have answered."""
        return self.over_select > 1 or self.close_after is not None


STEP_OPTIONS = {
    "auto": (),
    "mean": (),
    "momentum": ("rate", "momentum"),
    "adam": ("rate", "momentum", "beta2", "tau"),
    "yogi": ("rate", "momentum", "beta2", "tau"),
}
"""The server's steps by name, and the settings that each has."""


@dataclass(frozen=True)
class StepConfig(Part):
    """What the server makes of a round's average.

    Attributes:
        name: `auto`, the method's own step where it has one, else `mean`; `mean`, which takes the
            average as it is; `momentum`, `adam` or `yogi`, which move towards it with a memory of
            earlier rounds; or one's own as `package.module:thing`, a class or a function that is
            called with the settings below that are given, and returns a `ServerStep`.
        rate: how far a step goes.
        momentum: how much of the last step goes into the next; beta 1 of `adam` and `yogi`.
        beta2: for `adam` and `yogi`, the same for squares.
        tau: for `adam` and `yogi`, how small a change may be and still count in full.
    """

    name: str = "auto"
    rate: float | None = None
    momentum: float | None = None
    beta2: float | None = None
    tau: float | None = None

    def __post_init__(self) -> None:
        """Refuse steps that there are not, and settings that they do not have."""
        own = ":" in self.name
        require(
            own or self.name in STEP_OPTIONS,
            f"server.step.name {self.name!r} is unknown; there are: {', '.join(STEP_OPTIONS)}, or "
            "give your own as package.module:thing",
        )
        for key in self.given:
            require(
                own or key in STEP_OPTIONS[self.name],
                f"server.step.{key}: step {self.name!r} has none; "
                f"it has {', '.join(STEP_OPTIONS.get(self.name, ())) or 'no settings'}",
            )
        for key in ("momentum", "beta2"):
            value = getattr(self, key)
            require(
                value is None or 0 <= value < 1,
                f"server.step.{key} is {value}: give 0 or more, below 1",
            )
        for key in ("rate", "tau"):
            value = getattr(self, key)
            require(value is None or value > 0, f"server.step.{key} is {value}: give above 0")

    @property
    def given(self) -> dict[str, float]:
        """The settings that are given, by name."""
        values = {key: getattr(self, key) for key in ("rate", "momentum", "beta2", "tau")}
        return {key: value for key, value in values.items() if value is not None}


TRIM = 0.2
"""The share that a trimmed mean leaves out at each end, where nothing is said."""


@dataclass(frozen=True)
class ServerConfig(Part):
    """What the server does in and between rounds.

    Attributes:
        weighting: whether clients count equally (as in the paper) or by their examples.
        examples_limit: with `weighting` by examples, what a client claims counts at most so many
            times the median of its cohort; what the server dealt it counts in full.
        quorum: the share of a cohort's updates without which a round does not count.
        attempts: how often a round is tried before the run stops.
        evaluate_every: rounds between evaluations of all submodels; the last round always is.
        checkpoint_every: rounds between checkpoints; the last round always has one.
        keep: how many checkpoints are kept besides the best.
        recalibrate: whether every evaluation first measures batch norms anew over all clients'
            training data, instead of using what clients tracked and the server averaged. It
            changes no weights. Static norms are measured in any case.
        average: `mean`; one that outvotes a few wrong clients at every element, `median` or
            `trimmed-mean` over those who hold it; for adapters, `padded` (HetLoRA's) or `products`
            (FlexLoRA's); or one's own as `package.module:thing`.
        trim: for `trimmed-mean`, the share of holders left out at each end.
        min_holders: for those two, how many must hold an element for it to change.
        norm_limit: an update that moves its parameters or its statistics (running means and
            variances) this many times as far as the median of its cohort is refused; no limit if
            left out.
        clip_update: the largest root mean square by which an update's parameters may move; a
            larger movement is scaled down to it. No limit if left out.
        clip_statistics: the same for statistics, which move much further.
        step: what is made of the average.
    """

    weighting: Literal["equal", "examples"] = "equal"
    examples_limit: float = 2.0
    quorum: float = 0.5
    attempts: int = 3
    evaluate_every: int = 10
    checkpoint_every: int = 10
    keep: int = 2
    recalibrate: bool = False
    average: str = "mean"
    trim: float = TRIM
    min_holders: int = 1
    norm_limit: float | None = None
    clip_update: float | None = None
    clip_statistics: float | None = None
    step: StepConfig = field(default_factory=StepConfig)

    def __post_init__(self) -> None:
        """Refuse what would never evaluate, save or finish."""
        _check_average(self)
        require(0 < self.quorum <= 1, f"server.quorum is {self.quorum}: give above 0, at most 1")
        for key in ("attempts", "evaluate_every", "checkpoint_every", "keep"):
            require(getattr(self, key) >= 1, f"server.{key}: give 1 or more")


VOTING = ("median", "trimmed-mean")
"""The averages that outvote a few wrong clients."""

AVERAGES = ("mean", *VOTING, "padded", "products")
"""The averages that nefl has."""


def _check_average(server: ServerConfig) -> None:
    own, voting = ":" in server.average, server.average in VOTING
    require(
        own or server.average in AVERAGES,
        f"server.average {server.average!r} is unknown; there are: {', '.join(AVERAGES)}, or give "
        "your own as package.module:thing",
    )
    require(
        not voting or server.weighting == "equal",
        f"server.average {server.average!r} counts heads; set server.weighting to 'equal'",
    )
    require(0 < server.trim < 0.5, f"server.trim is {server.trim}: give above 0, below 0.5")
    require(
        server.trim == TRIM or server.average == "trimmed-mean",
        f"server.trim belongs to server.average 'trimmed-mean', which is {server.average!r}",
    )
    require(server.min_holders >= 1, f"server.min_holders is {server.min_holders}: give 1 or more")
    require(
        server.min_holders == 1 or voting,
        "server.min_holders belongs to server.average 'median' or 'trimmed-mean'",
    )
    require(
        server.norm_limit is None or server.norm_limit >= 1,
        f"server.norm_limit is {server.norm_limit}: give 1 or more; half of all clients move "
        "further than the median",
    )
    for key in ("clip_update", "clip_statistics"):
        limit = getattr(server, key)
        require(limit is None or limit > 0, f"server.{key} is {limit}: give a number above 0")
    require(
        server.examples_limit >= 1,
        f"server.examples_limit is {server.examples_limit}: give 1 or more; half of all clients "
        "have more examples than the median",
    )


WireFormat = Literal["float32", "bfloat16", "int8"]


@dataclass(frozen=True)
class WireConfig(Part):
    """How weights travel between server and clients, on every engine alike.

    With `bfloat16` or `int8` parameters take half or about a quarter of the bytes; statistics, step
    sizes and the sets of a method stay as they are.

    Attributes:
        down: the format of the weights that clients receive.
        up: the format of what they send back; unless both ways are `float32`, the difference to
            what they received.
    """

    down: WireFormat = "float32"
    up: WireFormat = "float32"
