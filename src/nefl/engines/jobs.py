"""The jobs of a worker: it waits for them on a connection and writes updates into a slot."""

import json
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from nefl.config.reading import config_from
from nefl.data import Partition, open_cached
from nefl.engines.devices import pick_device
from nefl.engines.memory_files import MemoryFile
from nefl.engines.sharing import SharedWeights
from nefl.engines.site import Site
from nefl.engines.tuning import tune_for
from nefl.errors import NeflError, NestingError
from nefl.methods import family_of
from nefl.moving import in_main_memory
from nefl.nesting.corners import extract
from nefl.nesting.sets import extract_all
from nefl.nesting.spec import Family
from nefl.own_code import describe, own_tracebacks
from nefl.server.evaluate import Chunk
from nefl.state import ClientUpdate, Tensors, TrainTask
from nefl.tasks.finding import open_task


def serve(connection: Connection, descriptor: int) -> None:
    """Serve jobs until the connection closes.

    Args:
        connection: where jobs come from.
        descriptor: the shared memory.
    """
    try:
        given = connection.recv_bytes()
    except EOFError:  # the run never began
        return
    try:
        work = _set_up(json.loads(given), descriptor)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the server must learn why, whatever it is
        notes = own_tracebacks(error) if isinstance(error, NeflError) else []
        connection.send_bytes(_reply(fatal=describe(error), notes=notes))
        return
    connection.send_bytes(_reply(ready=True))
    while True:
        try:
            job = json.loads(connection.recv_bytes())
        except EOFError:
            return
        connection.send_bytes(work.answer(job))


def _reply(**content: Any) -> bytes:
    return json.dumps(content).encode()


def _set_up(given: dict[str, Any], descriptor: int) -> "_Work":
    # In the server's order: the current folder comes last there, and may hold anything.
    sys.path[:] = given["path"] + [path for path in sys.path if path not in given["path"]]
    config = config_from(given["config"])
    tune_for(config)
    learned = open_task(config, open_cached(Path(given["dataset"]), verify=False))
    family = family_of(config.model, learned.signature, learned.model_arguments())
    if family.fingerprint != given["fingerprint"]:
        raise NestingError(
            f"{config.model.name} was built otherwise in the worker than in the server; a model "
            "must not depend on what a script has set before (torch's default dtype, say)"
        )
    if family.base_checksum != given["base"]:
        raise NestingError(f"{config.model.name}: the base changed since the run was started")
    partition = Partition.load(given["partition"])
    device = pick_device(given["device"])
    site = Site(config, family, learned, partition, device, processes=given["processes"])
    objective = site.objective
    weights = SharedWeights(
        family,
        given["slots"],
        descriptor,
        receives=objective.receives,
        sends=objective.sends,
    )
    return _Work(site, weights, family, Path(given["memory"]))


class _Work:
    def __init__(self, site: Site, weights: SharedWeights, family: Family, memory: Path) -> None:
        self._site = site
        self._weights = weights
        self._family = family
        self._memory = memory

    def answer(self, job: dict[str, Any]) -> bytes:
        """Carry out a job; what it raises goes back to the server as its failure."""
        try:
            if "train" in job:
                tasks = [TrainTask(*task) for task in job["train"]]
                return self._train(tasks, job["slots"], job["last"])
            return self._score(Chunk(*job["score"]))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a client's code may raise
            return _reply(error=describe(error))

    def _train(self, tasks: Sequence[TrainTask], slots: Sequence[int], last: int | None) -> bytes:
        objective, task = self._site.objective, tasks[0]
        state, family = self._weights.state, self._family
        tensors = extract_all(state, family, task.submodel, objective.receives)
        if len(tasks) == 1:
            keeper = MemoryFile(self._memory, task.client, task.round_number, last)
            updates = [self._site.train(task, tensors, keeper)]
        else:
            updates = self._site.train_together(tasks, tensors)
        for update, slot in zip(updates, slots, strict=True):
            self._write(update, tensors, slot)
        return _reply(trained=[[u.examples, dict(u.metrics)] for u in updates])

    def _write(self, update: ClientUpdate, received: Tensors, slot: int) -> None:
        wire, submodel = self._site.wire, update.task.submodel
        back = in_main_memory(wire.differences(wire.answer(update, received), submodel))
        for name, place in self._weights.slot(slot, submodel).items():
            place.copy_(back[name])

    def _score(self, chunk: Chunk) -> bytes:
        tensors = extract(self._weights.state, self._family, chunk.submodel)
        score = self._site.score(chunk, tensors)
        return _reply(score=[score.examples, score.loss, score.sums])
