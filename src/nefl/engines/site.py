"""One place where clients train: their data, and a module for each submodel, on one device."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from nefl.client.member import Member
from nefl.client.memory import Keeper, recall, renew, roll_kept
from nefl.client.precision import compute_in
from nefl.client.together import train_together
from nefl.client.training import Given, LocalTraining, train
from nefl.config import RunConfig
from nefl.data import Columns, Partition
from nefl.engines.compiled import compile_full_batches
from nefl.engines.device_clients import DeviceClients, check_device_clients
from nefl.engines.devices import data_fits
from nefl.engines.resident import resident
from nefl.errors import UpdateError
from nefl.methods import method_of
from nefl.moving import fetched, ready_to_go
from nefl.nesting.frozen import Moved, move_sharing
from nefl.nesting.inside import MEMBER, of_member
from nefl.nesting.profile import stage_channels
from nefl.nesting.sets import unpack
from nefl.nesting.spec import Family
from nefl.server.check import NOT_FINITE, first_not_finite
from nefl.server.evaluate import (
    BATCH,
    Chunk,
    Score,
    measure_norms,
    needs_measuring,
    score_chunk,
)
from nefl.state import ClientUpdate, Tensors, TrainTask
from nefl.tasks.dealing import subset
from nefl.tasks.metrics import Metric
from nefl.tasks.task import Task, rows_of
from nefl.wire.wire import Wire

NARROW = 64
"""Channels up to which a network trains faster with channels last, as measured on CPUs."""

SAFE_CHANNELS = 8
"""Input channels from which strided 1×1 convolutions can be trusted with channels last."""


def pick_memory_format(
    name: str, family: Family, submodel: int, device: torch.device
) -> torch.memory_format:
    """Return how images of a submodel lie in memory; `auto` goes by the width of the full model.

    Channels never come last where torch's kernels for that spoil memory, whatever is asked for.
    """
    if name == "auto":
        channels = stage_channels(family.meta_module(len(family)))
        name = "channels_last" if channels and max(channels) <= NARROW else "contiguous"
    trained = submodel, *family.members_within(submodel)
    if name == "contiguous" or (
        device.type == "cpu" and any(_spoils(family.meta_module(k)) for k in trained)
    ):
        return torch.contiguous_format
    return torch.channels_last


def _spoils(module: nn.Module) -> bool:
    """Whether a convolution writes past its memory when channels come last.

    On CPUs with AVX2 (oneDNN in torch 2.13), the backward pass of a strided 1×1 convolution with 2
    to 7 input channels does. The process then dies, or goes on with wrong numbers.
    """
    return any(
        isinstance(child, nn.Conv2d)
        and child.kernel_size == (1, 1)
        and max(child.stride) > 1
        and child.in_channels // child.groups < SAFE_CHANNELS
        for child in module.modules()
    )


class Site:
    """Trains tasks and scores chunks of the test set, one at a time.

    Args:
        config: the run.
        family: its family.
        task: what is learned, its columns normally memory-mapped.
        partition: which examples each client has.
        device: where to compute.
        processes: how many processes compute there.

    Attributes:
        measures_norms: whether norms are measured before a submodel is scored.
        objective: what clients follow: which sets they keep, receive and send.
        wire: how weights travel to clients and back.
    """

    def __init__(
        self,
        config: RunConfig,
        family: Family,
        task: Task,
        partition: Partition,
        device: torch.device,
        *,
        processes: int = 1,
    ) -> None:
        self._family = family
        self._device = device
        self._partition = partition
        self._modules: dict[tuple[int, bool], nn.Module] = {}
        self._unsaved: dict[tuple[int, bool], dict[str, Tensor]] = {}
        self._frozen: Moved = {}
        self._task = task
        examples = task.visible(task.train), task.visible(task.test)
        size = sum(column.nbytes for columns in examples for column in columns.values())
        there = data_fits(size, device, processes)
        self._train, self._test = (_Examples(each, device if there else None) for each in examples)
        self._test_rows = subset(task, config).test
        method = method_of(config.model)
        how = LocalTraining(
            config.local,
            config.schedule,
            config.rounds,
            config.seed,
            method.clip_norm if config.local.clip_norm is None else config.local.clip_norm,
            task,
            objective=method.objective,
            device=device,
        )
        self.objective = method.objective
        self.wire = Wire(family, config.wire, config.seed)
        self._rolling = method.rolling
        asked = config.local.memory_format
        self._how = {
            k: replace(how, memory_format=pick_memory_format(asked, family, k, device))
            for k in range(1, len(family) + 1)
        }
        self._compile = config.local.compile is True
        self._batch_size = config.local.batch_size
        self._precision = config.local.precision
        self.measures_norms = needs_measuring(family, recalibrate=config.server.recalibrate)
        check_device_clients(config, family, device.type)
        self._on_device = DeviceClients(config, family, task)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """How many examples each client has."""
        return self._partition.sizes

    @property
    def test_examples(self) -> int:
        """How many test examples there are."""
        return len(self._test_rows)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What is measured of a submodel."""
        return self._task.measured

    def train(
        self, task: TrainTask, tensors: Tensors, keeper: Keeper | None = None
    ) -> ClientUpdate:
        """Train a task; the update lives until the next call.

        Args:
            task: whose work it is.
            tensors: what came from the server: the submodel's weights, and sets beside them.
            keeper: where the client's memory lies, if its method has one.

        Raises:
            UpdateError: if what the client would keep is not finite.
        """
        weights, received = unpack(tensors)
        own = {name: t for name, t in weights.items() if not name.startswith(MEMBER)}
        rows, how = self.given_to(task)
        if self._on_device.have(task.client):
            return self._on_device.train(task, own, rows, how)
        model = self._load(task.submodel, own)
        within = {m: self._member(m, weights) for m in self._family.members_within(task.submodel)}
        keeps, family = self.objective.keeps, self._family
        kept = self._kept(task, keeper) if keeps else {}
        memory = recall(kept, family, task.submodel, keeps)
        given = Given(weights, received, memory, within)
        update, now = train(task, model, rows, how, given)
        for each, tensors in now.items():
            culprit = first_not_finite(tensors)
            if culprit is not None:  # the update must not count without what goes with it
                raise UpdateError(
                    f"client {task.client}: what it keeps, {each} of {culprit}, has {NOT_FINITE}"
                )
        if keeps and keeper is not None:
            keeper.save(renew(kept, family, task.submodel, now, whole=self._rolling))
        return update

    def train_together(self, tasks: Sequence[TrainTask], tensors: Tensors) -> list[ClientUpdate]:
        """Train tasks of one submodel at once, for clients with equally many examples.

        Args:
            tasks: whose work it is.
            tensors: what came from the server for each of them: the submodel's weights.
        """
        how = self._how[tasks[0].submodel]
        model = self._load(tasks[0].submodel, tensors)
        return train_together(tasks, model, [self.given_to(task)[0] for task in tasks], how)

    def given_to(self, task: TrainTask) -> tuple[dict[str, Tensor], LocalTraining]:
        """Return the examples of a task's client, and how it trains on them."""
        rows = self._train.take(self._partition.client(task.client))
        return rows, self._how[task.submodel]

    def _member(self, number: int, weights: Tensors) -> Member:
        """Return a member with its own tensors out of those that came."""
        # Not compiled: it runs with other tensors each time.
        module = self._load(number, of_member(weights, number), compiled=False)
        return Member(number, module, self._family.own_names(number))

    def _kept(self, task: TrainTask, keeper: Keeper | None) -> Tensors:
        """Return what a client kept in its last round, its channels where they are now."""
        found = None if keeper is None else keeper.load()
        if found is None:
            return {}
        last, kept = found
        return roll_kept(kept, self._family, task.round_number - last) if self._rolling else kept

    def score(self, chunk: Chunk, tensors: Tensors) -> Score:
        """Score a piece of an evaluation."""
        model = self.ready(chunk.submodel, tensors)
        rows = self._test.take(self._test_rows[chunk.start : chunk.stop])
        return score_chunk(model, rows, self._task, self._how[chunk.submodel].memory_format)

    def ready(self, submodel: int, tensors: Tensors) -> nn.Module:
        """Return a submodel as it is evaluated; it lives until the next call."""
        model = self._load(submodel, tensors)
        if self.measures_norms:
            measure_norms(model, self._training_batches(), self._how[submodel].memory_format)
        return model.eval()

    def _training_batches(self) -> Iterator[Tensor]:
        """Yield all clients' examples as inputs, without augmentation, in a fixed order."""
        rows = np.sort(self._partition.indices)
        parts = np.array_split(rows, -(-len(rows) // BATCH))
        for some in fetched(map(self._train.take, parts), self._device):
            yield self._task.make_inputs(some)

    def _load(self, submodel: int, tensors: Tensors, *, compiled: bool = True) -> nn.Module:
        key = submodel, compiled and self._compile
        module = self._modules.get(key)
        if module is None:
            with torch.random.fork_rng(devices=[]):  # its first weights are not kept
                module = self._family.build(self._family.specs[submodel - 1])
            module = move_sharing(module, self._device, self._frozen)
            module = compute_in(module, self._precision)
            if compiled and self._compile:
                layout = self._how[submodel].memory_format
                compile_full_batches(module, self._batch_size, len(self._family), layout)
            self._modules[key] = module
            saved = module.state_dict().keys()
            buffers = module.named_buffers()
            self._unsaved[key] = {n: b.clone() for n, b in buffers if n not in saved}
        own = module.state_dict()
        buffers_now = dict(module.named_buffers())
        with torch.no_grad():
            # Buffers that are not saved start anew too: nothing of one client reaches the next.
            for name, tensor in self._unsaved[key].items():
                buffers_now[name].copy_(tensor)
            for name, tensor in tensors.items():
                own[name].copy_(ready_to_go(tensor, self._device), non_blocking=True)
        return module


class _Examples:
    """Columns of examples, on a device or where they are mapped into memory."""

    def __init__(self, columns: Columns, device: torch.device | None) -> None:
        self._columns, self._device = columns, device
        self._resident: dict[str, Tensor] | None = None
        if device is not None:
            self._resident = {name: resident(c, device) for name, c in columns.items()}

    def take(self, rows: np.ndarray) -> dict[str, Tensor]:
        """Return the examples in these rows, where they lie."""
        if self._resident is None or self._device is None:
            return rows_of(self._columns, rows)
        chosen = torch.from_numpy(rows).to(self._device)
        return {name: column[chosen] for name, column in self._resident.items()}
