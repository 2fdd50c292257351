"""The configuration of a run: one tree of frozen dataclasses with their defaults."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from nefl.errors import ConfigError


class _Part:
    """A part of the tree: unknown keys are refused."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)


@dataclass(frozen=True)
class ModelConfig(_Part):
    """What is trained.

    Attributes:
        name: a model of the table, or one's own as `package.module:function`, a function of
            `classes` and `input_shape` that returns a `Family`.
        method: a method of the table; with one's own model only its way of training counts.
        ratios: share of the full model's parameters for each submodel; the paper's if left out.
        weights: a file of weights that the global model starts from; fresh ones if left out.
        start: the folder of a run or an elastic file that the whole family starts from.
    """

    name: str = "resnet8"
    method: str = "nefl-wd"
    ratios: tuple[float, ...] | None = None
    weights: str | None = None
    start: str | None = None

    def __post_init__(self) -> None:
        """Refuse to start from two things at once."""
        _require(
            self.weights is None or self.start is None,
            "model.weights and model.start: a run starts from one of them; leave the other out",
        )


@dataclass(frozen=True)
class DataConfig(_Part):
    """What is learned from.

    Attributes:
        name: a data set of the table, or one's own (see the page on data).
        root: the folder or file it is read from, where it needs one.
        cache: the folder for decoded data; the user's cache folder if left out.
        train: how many training examples to take, all if left out.
        test: how many test examples to take, all if left out.
        augment: the augmentation, the data set's own if left out.
        options: further options of the data set.
    """

    name: str = "digits"
    root: str | None = None
    cache: str | None = None
    train: int | None = None
    test: int | None = None
    augment: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PartitionConfig(_Part):
    """How examples are dealt out to clients.

    Attributes:
        kind: `iid`, `dirichlet` (label skew), `pathological` (few classes each) or `list`.
        alpha: concentration of the Dirichlet distribution; smaller is more skewed.
        classes_per_client: for `pathological`.
        file: for `list`, a JSON file with a list of example numbers for each client.
        min_examples: the fewest examples a client may have.
    """

    kind: Literal["iid", "dirichlet", "pathological", "list"] = "iid"
    alpha: float = 0.5
    classes_per_client: int = 2
    file: str | None = None
    min_examples: int = 1

    def __post_init__(self) -> None:
        """Refuse what no data could be dealt out by."""
        _require(self.alpha > 0, f"partition.alpha is {self.alpha}: give a number above 0")
        _require(self.min_examples >= 1, "partition.min_examples: a client needs an example")
        _require(
            (self.kind == "list") == (self.file is not None),
            "partition.file belongs to kind 'list', and that needs it",
        )


@dataclass(frozen=True)
class DeviceConfig(_Part):
    """A kind of device.

    Attributes:
        name: what it is called in reports.
        share: how common it is, relative to the others.
        memory: bytes that training may take.
        macs_per_second: multiply-accumulates it computes in a second.
        bandwidth: bytes it sends or receives in a second.
    """

    name: str
    memory: float
    macs_per_second: float
    bandwidth: float
    share: float = 1.0

    def __post_init__(self) -> None:
        """Refuse devices that cannot exist."""
        for key in ("memory", "macs_per_second", "bandwidth", "share"):
            _require(getattr(self, key) > 0, f"device {self.name!r}: {key} must be above 0")


@dataclass(frozen=True)
class ClientsConfig(_Part):
    """Who takes part, and what each can do.

    Attributes:
        count: clients in the population.
        per_round: clients in a cohort.
        capability: `tiers`, the paper's rule; `fixed`, always the submodel of one's tier; or
            `devices`, the largest submodel that fits the device in this round.
        spread: for `tiers`, how far a client strays from its tier.
        devices: for `devices`, the kinds of device.
        fluctuation: for `devices`, how much memory, speed and bandwidth vary from round to
            round: the standard deviation of their logarithm.
        deadline: for `devices`, seconds in which a client wants to be done with a round.
    """

    count: int = 100
    per_round: int = 10
    capability: Literal["tiers", "fixed", "devices"] = "tiers"
    spread: int = 2
    devices: tuple[DeviceConfig, ...] = ()
    fluctuation: float = 0.3
    deadline: float | None = None

    def __post_init__(self) -> None:
        """Refuse cohorts that cannot be drawn."""
        _require(self.count >= 1, f"clients.count is {self.count}: give 1 or more")
        _require(
            1 <= self.per_round <= self.count,
            f"clients.per_round is {self.per_round}: give 1 to clients.count, {self.count}",
        )
        _require(self.spread >= 0, f"clients.spread is {self.spread}: give 0 or more")
        _require(
            0 <= self.fluctuation <= 3,
            f"clients.fluctuation is {self.fluctuation}: give a number from 0 to 3",
        )
        _require(
            (self.capability == "devices") == bool(self.devices),
            "clients.devices belongs to capability 'devices', and that needs at least one",
        )
        _require(self.deadline is None or self.deadline > 0, "clients.deadline must be above 0")


@dataclass(frozen=True)
class LocalConfig(_Part):
    """How a client trains.

    Attributes:
        epochs: passes over its examples in a round.
        batch_size: examples in a step.
        optimizer: `sgd`, `adam` or `adamw`, fresh in every round.
        learning_rate: the rate before any schedule.
        momentum: for `sgd`.
        weight_decay: for all optimisers.
        clip_norm: largest gradient norm; the method's if left out, 0 for none.
        memory_format: how images lie in memory while training; it changes speed and, in the
            last bits, results. `auto` takes channels_last for narrow networks.
        compile: whether submodels are compiled by torch first; that pays for small networks in
            long runs, and changes the last bits too.
    """

    epochs: int = 5
    batch_size: int = 32
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None
    memory_format: Literal["auto", "channels_last", "contiguous"] = "auto"
    compile: bool = False

    def __post_init__(self) -> None:
        """Refuse training that cannot go on or would go on for ever."""
        _require(1 <= self.epochs <= 10_000, f"local.epochs is {self.epochs}: give 1 to 10000")
        _require(
            1 <= self.batch_size <= 65_536,
            f"local.batch_size is {self.batch_size}: give 1 to 65536",
        )
        for key in ("learning_rate", "momentum", "weight_decay"):
            value = getattr(self, key)
            _require(0 <= value < 1e6, f"local.{key} is {value}: give 0 or more")
        _require(self.momentum < 1, f"local.momentum is {self.momentum}: give less than 1")
        _require(self.clip_norm is None or self.clip_norm >= 0, "local.clip_norm: give 0 or more")


@dataclass(frozen=True)
class ScheduleConfig(_Part):
    """How the learning rate changes over the run.

    Attributes:
        name: `step`, `cosine` or `constant`.
        milestones: for `step`, the shares of all rounds after which the rate drops.
        factor: for `step`, what the rate is multiplied by.
        warmup_steps: local steps over which the rate first rises from 0.
    """

    name: Literal["step", "cosine", "constant"] = "step"
    milestones: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        """Refuse schedules that never apply."""
        _require(
            all(0 < share < 1 for share in self.milestones),
            f"schedule.milestones {self.milestones}: give shares of all rounds between 0 and 1",
        )
        _require(0 < self.factor <= 1, f"schedule.factor is {self.factor}: give 0 to 1")
        _require(self.warmup_steps >= 0, "schedule.warmup_steps: give 0 or more")


@dataclass(frozen=True)
class ServerConfig(_Part):
    """What the server does in and between rounds.

    Attributes:
        weighting: whether clients count equally (as in the paper) or by their examples.
        quorum: the share of a cohort's updates without which a round does not count.
        attempts: how often a round is tried before the run stops.
        evaluate_every: rounds between evaluations of all submodels; the last round always is.
        checkpoint_every: rounds between checkpoints; the last round always has one.
        keep: how many checkpoints are kept besides the best.
        recalibrate: whether every evaluation first measures batch norms anew over all clients'
            training data, instead of using what clients tracked and the server averaged. It
            changes no weights. Static norms are measured in any case.
        average: `mean`, or one that outvotes a few wrong clients at every element: `median` or
            `trimmed-mean`, over those who hold it.
        trim: for `trimmed-mean`, the share of holders left out at each end.
        min_holders: for those two, how many must hold an element for it to change.
        norm_limit: an update that moves its weights this many times as far as the median of its
            cohort is refused; no limit if left out.
        clip_update: the largest root mean square of an update's movement; a larger one is scaled
            down to it. No limit if left out.
    """

    weighting: Literal["equal", "examples"] = "equal"
    quorum: float = 0.5
    attempts: int = 3
    evaluate_every: int = 10
    checkpoint_every: int = 10
    keep: int = 2
    recalibrate: bool = False
    average: Literal["mean", "median", "trimmed-mean"] = "mean"
    trim: float = 0.2
    min_holders: int = 1
    norm_limit: float | None = None
    clip_update: float | None = None

    def __post_init__(self) -> None:
        """Refuse what would never evaluate, save or finish."""
        _check_average(self)
        _require(0 < self.quorum <= 1, f"server.quorum is {self.quorum}: give above 0, at most 1")
        for key in ("attempts", "evaluate_every", "checkpoint_every", "keep"):
            _require(getattr(self, key) >= 1, f"server.{key}: give 1 or more")


def _check_average(server: ServerConfig) -> None:
    _require(
        server.average == "mean" or server.weighting == "equal",
        f"server.average {server.average!r} counts heads; set server.weighting to 'equal'",
    )
    _require(0 < server.trim < 0.5, f"server.trim is {server.trim}: give above 0, below 0.5")
    _require(server.min_holders >= 1, f"server.min_holders is {server.min_holders}: give 1 or more")
    _require(
        server.min_holders == 1 or server.average != "mean",
        "server.min_holders belongs to server.average 'median' or 'trimmed-mean'",
    )
    _require(
        server.norm_limit is None or server.norm_limit >= 1,
        f"server.norm_limit is {server.norm_limit}: give 1 or more; half of all clients move "
        "further than the median",
    )
    _require(server.clip_update is None or server.clip_update > 0, "server.clip_update: above 0")


@dataclass(frozen=True)
class FlowerConfig(_Part):
    """How the Flower engine deals with its nodes; the other engines leave it alone.

    Attributes:
        deadline: seconds in which a round's replies must be there.
        patience: seconds to wait for nodes: for the whole population before the first round, for
            enough of them to make a quorum before the others.
        poll: seconds between two looks for replies.
        choice: `server` sends a client the one submodel it was given; `client` sends the whole
            global model and lets the client choose.
        measure: whether nodes of which nothing is known time the submodels when they join.
        registry: the operator's file of nodes, a path on the server.
    """

    deadline: float = 3600.0
    patience: float = 300.0
    poll: float = 0.2
    choice: Literal["server", "client"] = "server"
    measure: bool = False
    registry: str | None = None

    def __post_init__(self) -> None:
        """Refuse times that cannot be waited."""
        for key in ("deadline", "patience", "poll"):
            value = getattr(self, key)
            _require(0 < value <= 1e6, f"engine.flower.{key} is {value}: give seconds above 0")


@dataclass(frozen=True)
class EngineConfig(_Part):
    """What carries tasks to clients. Only `device` and `threads` touch the result: its last bits.

    Attributes:
        name: `serial` or `workers`; `auto` takes workers where there is more than one core and
            no CUDA device. Inside a Flower app it is `flower`, whatever stands here.
        workers: processes; if 0, as many as the cores allow with that many threads each.
        device: `cpu`, `cuda`, or `auto`, which takes CUDA where there is one.
        threads: torch threads of each process.
        flower: how the Flower engine deals with its nodes.
    """

    name: Literal["auto", "serial", "workers"] = "auto"
    workers: int = 0
    device: str = "auto"
    threads: int = 1
    flower: FlowerConfig = field(default_factory=FlowerConfig)

    def __post_init__(self) -> None:
        """Refuse numbers of processes that cannot be started."""
        _require(0 <= self.workers <= 1024, f"engine.workers is {self.workers}: give 0 to 1024")
        _require(1 <= self.threads <= 1024, f"engine.threads is {self.threads}: give 1 to 1024")
        _require(
            self.name != "serial" or not self.workers,
            f"engine.workers is {self.workers}: the serial engine has none; leave it out",
        )


@dataclass(frozen=True)
class PublishedConfig(_Part):
    """What others reported for this run, to set beside what comes out of it.

    Attributes:
        worst: top-1 accuracy of the smallest submodel, in percent as printed.
        average: mean top-1 accuracy of all submodels, likewise.
        source: where it stands, such as a table of the paper.
    """

    worst: float | None = None
    average: float | None = None
    source: str = ""


@dataclass(frozen=True)
class RunConfig(_Part):
    """A complete run.

    Attributes:
        about: what the run is, for people.
        seed: where everything random comes from.
        rounds: rounds to train.
    """

    about: str = ""
    seed: int = 0
    rounds: int = 500
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    clients: ClientsConfig = field(default_factory=ClientsConfig)
    local: LocalConfig = field(default_factory=LocalConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    published: PublishedConfig = field(default_factory=PublishedConfig)

    def __post_init__(self) -> None:
        """Refuse runs without end or beginning."""
        _require(0 <= self.seed < 2**63, f"seed is {self.seed}: give 0 or more")
        _require(1 <= self.rounds <= 10**7, f"rounds is {self.rounds}: give 1 to 10000000")

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as plain values, ready for JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return plain
