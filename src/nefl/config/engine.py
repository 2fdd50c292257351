"""Settings of the engine: where clients are trained, and how nodes are reached."""

from dataclasses import dataclass, field
from typing import Literal

from nefl.config.checks import Names, Part, listed, require


@dataclass(frozen=True)
class FlowerConfig(Part):
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
            require(0 < value <= 1e6, f"engine.flower.{key} is {value}: give seconds above 0")


@dataclass(frozen=True)
class EngineConfig(Part):
    """What carries tasks to clients, and where these train.

    `devices`, `threads`, `deterministic`, `together` and `client` touch the result's last bits.

    Attributes:
        name: `serial` or `workers`; `auto` takes workers where there is more than one to take.
            Inside a Flower app it is `flower`, whatever stands here.
        workers: processes, dealt out over the devices in turn; if 0, `per_device` says how many.
        devices: where clients train: `cpu`, `cuda`, `cuda:1`, …, all of one kind; one may stand
            twice. `auto` takes every CUDA device there is, or the CPU.
        per_device: processes on each device; if 0, one, and on the CPU alone as many as the cores
            allow with `threads` threads each. At most one for each client of a round.
        sums: where the server adds updates up: a device, or `auto`, which is where they are: with
            `serial` the device, with `workers` main memory.
        deterministic: whether kernels of a GPU are chosen that repeat bit for bit; otherwise the
            fastest are. A CPU's always repeat.
        together: how many clients of one submodel a process trains at once, with their weights
            stacked.
        threads: torch threads of each process.
        client: what clients train with: `torch`, or `executorch`, which phones have.
        client_share: the share of clients that do so, evenly spread by their numbers; the others
            train with torch.
        programs: a folder that `nefl export --trainable` wrote, for `executorch`; if left out,
            programs are made when a run starts, and kept in the cache.
        flower: how the Flower engine deals with its nodes.
    """

    name: Literal["auto", "serial", "workers"] = "auto"
    workers: int = 0
    devices: Names = ("auto",)
    threads: int = 1
    client: Literal["torch", "executorch"] = "torch"
    client_share: float = 1.0
    programs: str | None = None
    flower: FlowerConfig = field(default_factory=FlowerConfig)
    per_device: int = 0
    sums: str = "auto"
    deterministic: bool = True
    together: int = 1

    def __post_init__(self) -> None:
        """Refuse numbers of processes that cannot be started."""
        object.__setattr__(self, "devices", tuple(listed(self.devices)))
        self._check_devices()
        require(0 <= self.workers <= 1024, f"engine.workers is {self.workers}: give 0 to 1024")
        require(1 <= self.threads <= 1024, f"engine.threads is {self.threads}: give 1 to 1024")
        require(
            self.name != "serial" or not self.workers,
            f"engine.workers is {self.workers}: the serial engine has none; leave it out",
        )
        require(
            0 < self.client_share <= 1,
            f"engine.client_share is {self.client_share}: give above 0, at most 1",
        )
        require(
            self.client == "executorch" or (self.client_share == 1 and self.programs is None),
            "engine.client_share and engine.programs belong to engine.client 'executorch'",
        )

    def _check_devices(self) -> None:
        require(bool(self.devices), "engine.devices: name a device or more, or auto")
        require(
            self.devices == ("auto",) or "auto" not in self.devices,
            f"engine.devices is {list(self.devices)}: auto takes all there are; name it alone",
        )
        require(
            self.name != "serial" or (len(self.devices) == 1 and self.per_device <= 1),
            f"engine.devices is {list(self.devices)} with per_device {self.per_device}: the serial "
            "engine is one process on one device; set engine.name to 'workers'",
        )
        require(
            0 <= self.per_device <= 1024, f"engine.per_device is {self.per_device}: give 0 to 1024"
        )
        require(
            not (self.workers and self.per_device),
            f"engine.workers is {self.workers}, engine.per_device {self.per_device}: give the "
            "processes of all devices or of each; leave one of them out",
        )
        require(1 <= self.together <= 1024, f"engine.together is {self.together}: give 1 to 1024")
