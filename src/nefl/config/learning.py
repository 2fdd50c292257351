"""What is learned, from what, and how."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nefl.config.checks import Part, require

LORA = "lora"
"""The model that is adapters on a frozen base, which its options describe."""


@dataclass(frozen=True)
class MemberConfig(Part):
    """One submodel, given instead of a ratio; the full model if nothing is said.

    Attributes:
        width: kept fraction of channels, one number for all stages or one for each stage.
        inner_width: kept fraction of the channels inside each residual branch, for each stage a
            list with one for each block, where it differs from the width of the stage.
        blocks: for each stage how many leading blocks stay, or a list with the initial step size
            of each block, 0 = absent; all blocks if left out.
        exits: after how many residual blocks of the whole model one's own model has an early
            classifier; with nefl's own models the method says so.
        rank: of adapters.
    """

    width: float | tuple[float, ...] = 1.0
    inner_width: tuple[tuple[float, ...], ...] | None = None
    blocks: tuple[int | tuple[float, ...], ...] | None = None
    exits: tuple[int, ...] = ()
    rank: int | None = None


@dataclass(frozen=True)
class ModelConfig(Part):
    """What is trained.

    Attributes:
        name: a model of the table, or one's own as `package.module:function`, a function of
            `classes` and `input_shape` that returns a `Family`.
        method: a method of the table or of an entry point, or one's own as `package.module:thing`;
            with one's own model only its way of training counts.
        ratios: share of the full model's parameters for each submodel; the paper's if left out.
        members: the submodels one by one, smallest first and the full one last, instead of ratios.
        init: the first weights by name (see the page on models); the model's own if left out.
        weights: a file of weights that the global model starts from; fresh ones if left out.
        start: the folder of a run or an elastic file that the whole family starts from.
        method_options: settings of the method, where it takes some.
        options: settings of the model, where it takes some: those of `lora`, or further arguments
            of one's own function.
    """

    name: str = "resnet8"
    method: str = "nefl-wd"
    ratios: tuple[float, ...] | None = None
    members: tuple[MemberConfig, ...] = ()
    init: str | None = None
    weights: str | None = None
    start: str | None = None
    # Mappings have no hash; equality tells models apart that differ in this alone.
    method_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Refuse to start from two things at once, or to have submodels by two rules."""
        require(
            self.ratios is None or not self.members,
            "model.ratios and model.members: submodels follow from ratios or are given one by "
            "one; leave one of them out",
        )
        require(
            self.weights is None or self.start is None,
            "model.weights and model.start: a run starts from one of them; leave the other out",
        )


@dataclass(frozen=True)
class DataConfig(Part):
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
class PartitionConfig(Part):
    """How examples are dealt out to clients.

    Attributes:
        kind: `iid`; `quantity`, alike but unequally many; `dirichlet` (label skew);
            `pathological` (few classes each); `tiers` (stronger clients have classes that weaker
            ones lack); `owner`, as a column of the data says; or `list`.
        alpha: concentration of the Dirichlet distribution; smaller is more skewed.
        classes_per_client: for `pathological`.
        tiers: for `tiers`, how many there are; as a rule as many as submodels.
        file: for `list`, a JSON file with a list of example numbers for each client.
        min_examples: the fewest examples a client may have.
    """

    kind: Literal["iid", "quantity", "dirichlet", "pathological", "tiers", "owner", "list"] = "iid"
    alpha: float = 0.5
    classes_per_client: int = 2
    tiers: int = 5
    file: str | None = None
    min_examples: int = 1

    def __post_init__(self) -> None:
        """Refuse what no data could be dealt out by."""
        require(self.alpha > 0, f"partition.alpha is {self.alpha}: give a number above 0")
        require(self.tiers >= 1, f"partition.tiers is {self.tiers}: give 1 or more")
        require(self.min_examples >= 1, "partition.min_examples: a client needs an example")
        require(
            (self.kind == "list") == (self.file is not None),
            "partition.file belongs to kind 'list', and that needs it",
        )


@dataclass(frozen=True)
class LocalConfig(Part):
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
        compile: whether full batches are trained with code that torch compiles first, which
            changes the last bits too. `auto` measures at the start whether that pays, and the
            answer takes its place in the run's settings.
        precision: in what numbers models compute, in training and evaluation: `float32`; `tf32`,
            whose products have 10 bits, on GPUs that have it; `bf16` or, on GPUs, `fp16`, by
            torch's autocast. Weights, gradients, losses and sums are float32 in any case.
    """

    epochs: int = 5
    batch_size: int = 32
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None
    memory_format: Literal["auto", "channels_last", "contiguous"] = "auto"
    compile: bool | Literal["auto"] = False
    precision: Literal["float32", "tf32", "bf16", "fp16"] = "float32"

    def __post_init__(self) -> None:
        """Refuse training that cannot go on or would go on for ever."""
        require(1 <= self.epochs <= 10_000, f"local.epochs is {self.epochs}: give 1 to 10000")
        require(
            1 <= self.batch_size <= 65_536,
            f"local.batch_size is {self.batch_size}: give 1 to 65536",
        )
        for key in ("learning_rate", "momentum", "weight_decay"):
            value = getattr(self, key)
            require(0 <= value < 1e6, f"local.{key} is {value}: give 0 or more, below 1e6")
        require(self.momentum < 1, f"local.momentum is {self.momentum}: give less than 1")
        require(self.clip_norm is None or self.clip_norm >= 0, "local.clip_norm: give 0 or more")


@dataclass(frozen=True)
class ScheduleConfig(Part):
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
        require(
            all(0 < share < 1 for share in self.milestones),
            f"schedule.milestones {self.milestones}: give shares of all rounds between 0 and 1",
        )
        require(0 < self.factor <= 1, f"schedule.factor is {self.factor}: give 0 to 1")
        require(self.warmup_steps >= 0, "schedule.warmup_steps: give 0 or more")
