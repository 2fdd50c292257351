"""Programs that train: made from a family, tried in the runtime, kept on disk, opened, checked."""

import fcntl
import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from nefl.artifacts.programfile import seal, unseal
from nefl.artifacts.trainable import (
    KIND,
    TensorCard,
    TrainableCard,
    trainable_from_json,
    trainable_to_json,
)
from nefl.errors import ConfigError, RunError
from nefl.files import write_atomically
from nefl.nesting.spec import Family
from nefl.ondevice.plain import Trained
from nefl.ondevice.runtime import (
    Graph,
    Session,
    executorch_version,
    lower,
    read_graph,
    release,
)
from nefl.tasks.task import Task, rows_of

MAKING = 2
"""Counts up when programs are made in another way, so that those in caches are made again."""

FEWEST = 3
"""Examples of the batch that a program is read with: with fewer, the size of a batch is fixed."""

LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-4, 5e-2
"""How far a program's first step may be from torch's, relatively. An activation near zero may fall
on its other side, and move gradients by a hundredth; a wrong program is off by far more."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Program:
    """A program that trains one submodel.

    Attributes:
        code: what the runtime loads.
        card: what it says of itself.
    """

    code: bytes
    card: TrainableCard

    def save(self, path: Path) -> None:
        """Write it, with its card and a checksum behind.

        Raises:
            RunError: if it cannot be written.
        """
        data = seal(self.code, trainable_to_json(self.card).encode())
        write_atomically(path, lambda beside: _fill(beside, data))


def _fill(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def open_trainable(path: Path) -> Program:
    """Open a program that trains.

    Raises:
        RunError: if the file is missing, foreign, cut off, damaged or of another version.
    """
    code, text = unseal(path)
    return Program(code, trainable_from_json(text, path))


@dataclass(frozen=True, eq=False)
class Wanted:
    """What programs are made for.

    Attributes:
        family: the family.
        task: what is learned.
        batch_size: examples in a step, at most.
        model: the model's name.
        method: the method's name.
    """

    family: Family
    task: Task
    batch_size: int
    model: str
    method: str

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return a full batch of the task's first examples: inputs and target."""
        size = max(self.batch_size, FEWEST)
        chosen = np.resize(np.arange(min(size, self.task.train_examples)), size)
        rows = rows_of(self.task.visible(self.task.train), chosen)
        return self.task.make_inputs(rows), self.task.make_target(rows)

    @property
    def loss_name(self) -> str:
        """The loss by its name, or that of its function."""
        loss = self.task.loss
        return loss if isinstance(loss, str) else getattr(loss, "__qualname__", str(loss))

    def check(self, program: Program, submodel: int, source: object) -> None:
        """Raise unless a program trains a submodel of this family, in such batches.

        Raises:
            RunError: naming what differs, what was found, what was expected and the remedy.
        """
        card = program.card
        _, target = self.sample()
        here, there = executorch_version(), card.executorch
        expected: dict[str, tuple[object, object]] = {
            "family": (card.family, self.family.fingerprint),
            "submodel": (card.submodel, submodel),
            "model": (card.model, self.model),
            # Constant step sizes are no tensors: the family's fingerprint does not tell them.
            "member": (card.spec, self.family.specs[self.family.index(submodel)]),
            "batch size": (card.batch_size, self.batch_size),
            "loss": (card.loss, self.loss_name),
            "input": (card.signature, self.task.signature),
            "target": (card.target_dtype, _dtype(target.dtype)),
            "release of ExecuTorch": (release(there), release(here)),
        }
        for what, (found, wanted) in expected.items():
            if found != wanted:
                raise RunError(
                    f"{source}: trains another {what}: found {found} (made for {card.model}, "
                    f"{card.method}), expected {wanted} ({self.model}, {self.method}); export it "
                    "for this run with `nefl export --trainable`"
                )


def get_program(wanted: Wanted, submodel: int, cache: Path) -> Program:
    """Return the program of a submodel, from the cache if it was made before on this machine.

    Args:
        wanted: what it is for.
        submodel: its number, from 1.
        cache: the folder of all that is cached.

    Raises:
        ConfigError: if ExecuTorch is not there, or cannot train the model.
        RunError: if the program does not do what torch does.
    """
    graph, card = _read(wanted, submodel)
    path = cache / "programs" / f"{_digest(graph, card)}.pte"
    kept = _kept(path)
    if kept is not None:
        return kept
    with _alone(path):
        kept = _kept(path)  # another process may have made it meanwhile
        if kept is not None:
            return kept
        _log.info("%s: submodel %d is made ready for ExecuTorch", wanted.model, submodel)
        program = Program(lower(graph), card)
        _try_out(program, wanted, submodel)
        program.save(path)
        return program


def _read(wanted: Wanted, submodel: int) -> tuple[Graph, TrainableCard]:
    """Return a submodel in plain operations, as a graph, and what its program says of itself."""
    family, task = wanted.family, wanted.task
    inputs, target = wanted.sample()
    network = Trained(_build(family, submodel), task.loss_of)
    with torch.no_grad():
        for parameter in network.parameters():  # no weights are in a program: they come with tasks
            parameter.zero_()
    roles = family.roles(submodel)
    card = TrainableCard(
        kind=KIND,
        model=wanted.model,
        method=wanted.method,
        family=family.fingerprint,
        submodel=submodel,
        spec=family.specs[family.index(submodel)],
        signature=task.signature,
        target_shape=tuple(target.shape[1:]),
        target_dtype=_dtype(target.dtype),
        batch_size=wanted.batch_size,
        loss=wanted.loss_name,
        parameters=tuple(name for name, _ in network.model.named_parameters()),
        norms=network.norms(inputs[:2]),
        layout=tuple(
            TensorCard(name, info.shape, _dtype(info.dtype), roles[name])
            for name, info in family.layout(submodel).items()
        ),
        executorch=executorch_version(),
        nefl=version("nefl"),
        facts=dict(task.facts),
    )
    named = {tensor.name for tensor in card.layout if tensor.role == "parameter"}
    if named != set(card.parameters):
        raise ConfigError(
            f"submodel {submodel}: {', '.join(sorted(named ^ set(card.parameters)))}: tied "
            "parameters cannot be trained in ExecuTorch yet; train them with torch"
        )
    return read_graph(network.train(), inputs, target), card


def _build(family: Family, submodel: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return family.build(family.specs[family.index(submodel)]).train()


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _digest(graph: Graph, card: TrainableCard) -> str:
    """Return a checksum of all that a program is made of, so that equal ones are made once."""
    digest = hashlib.sha256(trainable_to_json(card).encode())
    digest.update(f"{MAKING} {torch.__version__} {graph.graph_module.code}".encode())
    for name, constant in sorted({**graph.constants, **dict(graph.named_buffers())}.items()):
        digest.update(name.encode())
        if isinstance(constant, Tensor):
            digest.update(constant.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _kept(path: Path) -> Program | None:
    try:
        return open_trainable(path)
    except RunError:
        return None  # not there, or damaged: it is made again


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes from making the same program meanwhile."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("w")
    except OSError as error:
        raise RunError(
            f"{path.parent}: programs cannot be kept there ({error.strerror}); free some space or "
            "name another folder with NEFL_CACHE"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # freed by the system if the holder dies
        yield


def _try_out(program: Program, wanted: Wanted, submodel: int) -> None:
    """Let a program go one step, from weights that it was not made with, and compare with torch.

    Raises:
        RunError: naming what differs.
    """
    inputs, target = wanted.sample()
    model = _build(wanted.family, submodel)
    loss = wanted.task.loss_of(model(inputs), target)
    torch.autograd.backward(loss)
    expected = float(loss.detach())
    session = Session(program.code, inputs[:2], target[:2])
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            raise ConfigError(
                f"submodel {submodel}: {name} has no part in the answer; ExecuTorch cannot train "
                "it; train it with torch"
            )
        session.parameters[name].copy_(parameter.detach())
    found = float(session.run(inputs, target)[0])
    apart, whole = 0.0, 0.0
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None  # noqa: S101 -- seen above
        apart += float((session.gradients[name] - parameter.grad).square().sum())
        whole += float(parameter.grad.square().sum())
    off = (apart / whole) ** 0.5 if whole else apart
    if not (
        abs(found - expected) <= LOSS_TOLERANCE * max(1.0, abs(expected))
        and off <= GRADIENT_TOLERANCE
    ):
        raise RunError(
            f"submodel {submodel} of {wanted.model}: its program has loss {found:.6g} where torch "
            f"has {expected:.6g}, and gradients that differ by {off:.2g} of theirs; it is not "
            "used: train the model with torch"
        )
