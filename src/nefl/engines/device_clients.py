"""The clients of a run that train in ExecuTorch: which they are, and with which programs."""

from collections.abc import Iterator
from math import floor
from pathlib import Path

from nefl.client.objective import Objective
from nefl.client.training import LocalTraining
from nefl.config import EngineConfig, RunConfig
from nefl.errors import ConfigError
from nefl.files import default_cache
from nefl.methods import method_of
from nefl.nesting.spec import Family
from nefl.ondevice.client import DeviceTrainer
from nefl.ondevice.programs import Program, Wanted, get_program, open_trainable
from nefl.ondevice.runtime import executorch_version
from nefl.state import ClientUpdate, Tensors, TrainTask
from nefl.tasks.task import Rows, Task

EXECUTORCH = "executorch"


def trains_on_device(engine: EngineConfig, client: int) -> bool:
    """Whether a client trains in ExecuTorch; where a share does, they lie evenly among all."""
    share = engine.client_share
    return engine.client == EXECUTORCH and floor((client + 1) * share) > floor(client * share)


def program_file(folder: Path, submodel: int) -> Path:
    """Return where a folder of exported programs has that of a submodel."""
    return folder / f"submodel-{submodel}.pte"


def check_device_clients(config: RunConfig, family: Family, device: str) -> None:
    """Refuse what ExecuTorch's runtime cannot train, by name.

    Args:
        config: the run.
        family: its family.
        device: where the run computes, as torch calls it.

    Raises:
        ConfigError: naming the setting, what is possible and the remedy.
    """
    if config.engine.client != EXECUTORCH:
        return
    executorch_version()
    method, local, name = method_of(config.model), config.local, config.model.method
    clip = method.clip_norm if local.clip_norm is None else local.clip_norm
    refused = {
        f"model {config.model.name!r} has frozen weights, which a program would have to hold": any(
            family.frozen(len(family))
        ),
        f"local.optimizer {local.optimizer!r}: the runtime has sgd": local.optimizer != "sgd",
        f"gradients are clipped to {clip}, which the runtime does not; set local.clip_norm to 0": (
            bool(clip)
        ),
        f"model.method {name!r} follows {type(method.objective).__name__}; a program has the "
        "task's loss and nothing else": type(method.objective) is not Objective,
        f"model.method {name!r} trains members inside others": any(family.within),
        f"engine.devices is {device!r}, and programs run on the CPU; set it to 'cpu'": (
            device != "cpu"
        ),
        f"local.precision {local.precision!r}: programs are in float32": (
            local.precision != "float32"
        ),
    }
    for reason, applies in refused.items():
        if applies:
            raise ConfigError(
                f"engine.client 'executorch': {reason}; or let clients train with torch "
                "(engine.client 'torch')"
            )


class DeviceClients:
    """Trains the tasks of those clients that have ExecuTorch in place of torch.

    Args:
        config: the run.
        family: its family.
        task: what is learned.

    Raises:
        ConfigError: if the run asks for something that the runtime cannot do.
        RunError: if a program that was given is not for this run.
    """

    def __init__(self, config: RunConfig, family: Family, task: Task) -> None:
        self._engine = config.engine
        self._wanted = Wanted(
            family, task, config.local.batch_size, config.model.name, config.model.method
        )
        self._cache = Path(config.data.cache) if config.data.cache else default_cache()
        self._trainers: dict[int, DeviceTrainer] = {}

    def have(self, client: int) -> bool:
        """Whether a client is one of them."""
        return trains_on_device(self._engine, client)

    def train(
        self, task: TrainTask, weights: Tensors, rows: Rows, how: LocalTraining
    ) -> ClientUpdate:
        """Train a task of one of them."""
        trainer = self._trainers.get(task.submodel)
        if trainer is None:
            inputs, target = self._wanted.sample()
            program, threads = self.program(task.submodel), self._engine.threads
            trainer = DeviceTrainer(program, (inputs[:2], target[:2]), threads)
            self._trainers[task.submodel] = trainer
        return trainer.train(task, weights, rows, how)

    def program(self, submodel: int) -> Program:
        """Return a submodel's program: the one that was given, or the one for this run."""
        if self._engine.programs is None:
            return get_program(self._wanted, submodel, self._cache)
        path = program_file(Path(self._engine.programs), submodel)
        program = open_trainable(path)
        self._wanted.check(program, submodel, path)
        return program

    def make_ready(self, submodels: Iterator[int] | range) -> None:
        """See that programs are there, before tasks need them; making one takes a minute."""
        for submodel in submodels:
            self.program(submodel)
