"""Worker processes on one machine: weights and data in shared memory, nothing pickled."""

import json
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nefl.client.together import groups_of
from nefl.config import RunConfig
from nefl.engines.memory_files import MemoryFiles
from nefl.engines.sharing import SharedWeights
from nefl.engines.waiting import WaitingWorkers, end_worker
from nefl.errors import RunError
from nefl.methods import method_of
from nefl.nesting.sets import unpack
from nefl.nesting.spec import Family
from nefl.server.evaluate import Score, combine, make_chunks, needs_measuring
from nefl.state import ClientFailure, ClientUpdate, Evaluation, ServerState, TrainTask
from nefl.tasks.task import Task
from nefl.wire.wire import Wire

MAX_DEATHS = 5
"""Times that each worker may die, without a finished job between, before the run stops."""

MAX_TRIES = 3
"""Workers that may die over one task, one after another, before the task counts as failed."""


@dataclass
class _Worker:
    process: "subprocess.Popen[bytes]"
    connection: Connection
    ready: bool = False
    job: int | None = None


class WorkersEngine:
    """Trains and evaluates in processes of this machine.

    Args:
        config: the run; workers build everything they need from it.
        family: its family.
        task: what is learned; its cached columns are memory-mapped by every worker.
        partition: the file with the partition.
        sizes: how many examples each client has.
        test_examples: how many test examples there are.
        devices: where each process trains; there are as many as names.
        memories: where clients' memory lies.
        processes: where its processes come from; it closes that with itself.
    """

    def __init__(
        self,
        config: RunConfig,
        family: Family,
        *,
        task: Task,
        partition: Path,
        sizes: npt.NDArray[np.int64],
        test_examples: int,
        devices: Sequence[torch.device],
        memories: MemoryFiles,
        processes: WaitingWorkers,
    ) -> None:
        self._family = family
        self._wire = Wire(family, config.wire, config.seed)
        self._metrics = task.measured
        self._test_examples = test_examples
        self._measures_norms = needs_measuring(family, recalibrate=config.server.recalibrate)
        # Twice the workers: results wait their turn without keeping anybody from the next job.
        self._ahead = 2 * len(devices)
        self._together = config.engine.together
        self._sizes = sizes
        self._devices = devices
        slots = self._ahead * self._together
        self._processes = processes
        objective = method_of(config.model).objective
        self._weights = SharedWeights(
            family,
            slots,
            processes.descriptor,
            receives=objective.receives,
            sends=objective.sends,
        )
        self._memories = memories if objective.keeps else None
        self._setup = {
            "config": config.to_dict(),
            "path": [path or str(Path.cwd()) for path in sys.path],
            "dataset": str(task.folder),
            "partition": str(partition),
            "slots": slots,
            "fingerprint": family.fingerprint,
            "base": family.base_checksum,
            "memory": str(memories.folder),
        }
        self._deaths = 0
        self._any_ready = False
        self._workers: list[_Worker] = []
        try:
            for device in devices:
                self._workers.append(self._start(device))
        except RunError:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process numbers of the workers."""
        return [worker.process.pid for worker in self._workers]

    def train(
        self, state: ServerState, tasks: Sequence[TrainTask]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        """Yield each task's update in the order of the tasks.

        A client that raises costs its task. A task whose worker dies is done again, and counts as
        failed if that happens as often as it may: then it is the task that kills.
        """
        self._weights.write(self._wire.send(state).received())
        if self._memories is not None:
            self._memories.begin(state.round_number)
        groups = groups_of(tasks, self._sizes, self._together)
        jobs: list[dict[str, Any]] = [
            {
                "train": [[task.round_number, task.client, task.submodel] for task in group],
                "slots": self._slots_of(number, group),
                "last": self._memories and self._memories.last_round(group[0].client),
            }
            for number, group in enumerate(groups)
        ]
        for number, reply in enumerate(self._carry_out(jobs)):
            for place, task in enumerate(groups[number]):
                if "error" in reply:
                    yield ClientFailure(task, reply["error"])
                    continue
                slot = self._weights.slot(jobs[number]["slots"][place], task.submodel)
                trained, sent = unpack(self._wire.added(slot, state, task.submodel))
                examples, metrics = reply["trained"][place]
                yield ClientUpdate(task, trained, examples, metrics, sent)

    def _slots_of(self, number: int, group: Sequence[TrainTask]) -> list[int]:
        """Return the slots of a job's updates."""
        first = number % self._ahead * self._together
        return list(range(first, first + len(group)))

    def settle(self, round_number: int, counted: Collection[int]) -> None:
        """Let only clients whose updates counted keep what they learned of a round."""
        if self._memories is not None:
            self._memories.settle(round_number, counted)

    def evaluate(self, state: ServerState, submodels: Sequence[int]) -> list[Evaluation]:
        """Measure submodels on the test set.

        Raises:
            RunError: if a piece of the work fails; there is nothing to average around it.
        """
        self._weights.write(state)
        chunks = make_chunks(submodels, self._test_examples, whole=self._measures_norms)
        jobs = [{"score": [c.submodel, c.start, c.stop]} for c in chunks]
        scores = []
        for chunk, reply in zip(chunks, self._carry_out(jobs), strict=True):
            if "error" in reply:
                raise RunError(f"evaluation of submodel {chunk.submodel} failed: {reply['error']}")
            scores.append(Score(*reply["score"]))
        return combine(chunks, scores, self._metrics)

    def close(self) -> None:
        """End the workers and free the shared memory."""
        for worker in self._workers:
            end_worker(worker.process, worker.connection)
        self._workers = []
        self._processes.close()

    def _start(self, device: torch.device) -> _Worker:
        process, connection = self._processes.take()
        here = {"device": str(device), "processes": self._devices.count(device)}
        with suppress(OSError):  # one that has just died is found out when it is asked
            connection.send_bytes(json.dumps(self._setup | here).encode())
        return _Worker(process, connection)

    def _carry_out(self, jobs: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the reply to each job in order; who asks for the next is done with the last."""
        waiting = deque(range(len(jobs)))
        done: dict[int, dict[str, Any]] = {}
        deaths: Counter[int] = Counter()
        finished = 0
        try:
            while finished < len(jobs):
                self._hand_out(jobs, waiting, finished)
                if finished in done:
                    yield done.pop(finished)
                    finished += 1
                else:
                    self._collect(jobs, waiting, done, deaths)
        finally:
            # Left early: what is still under way must not be taken for an answer to later jobs.
            for number, worker in enumerate(self._workers):
                if worker.job is not None:
                    end_worker(worker.process, worker.connection)
                    self._workers[number] = self._start(self._devices[number])

    def _hand_out(
        self, jobs: Sequence[dict[str, Any]], waiting: "deque[int]", finished: int
    ) -> None:
        for number, worker in enumerate(self._workers):
            # A job's slots are free once the job that had it before has been taken in.
            if not waiting or waiting[0] >= finished + self._ahead:
                return
            if worker.ready and worker.job is None:
                try:
                    worker.connection.send_bytes(json.dumps(jobs[waiting[0]]).encode())
                except OSError:
                    self._bury(number)
                    continue
                worker.job = waiting.popleft()

    def _collect(
        self,
        jobs: Sequence[dict[str, Any]],
        waiting: "deque[int]",
        done: dict[int, dict[str, Any]],
        deaths: Counter[int],
    ) -> None:
        """Wait until some worker says something or dies."""
        by_connection = {worker.connection: n for n, worker in enumerate(self._workers)}
        for connection in wait(list(by_connection)):
            number = by_connection[connection]  # type: ignore[index]
            worker = self._workers[number]
            try:
                reply = json.loads(worker.connection.recv_bytes())
            except (EOFError, OSError):
                job, died = worker.job, self._bury(number)
                if job is not None:
                    deaths[job] += 1
                    if "score" in jobs[job] or deaths[job] < MAX_TRIES:
                        # Nothing of it was taken in, so it comes out as if this had not been.
                        waiting.appendleft(job)
                    else:
                        done[job] = {"error": f"its worker process {died}, {MAX_TRIES} times"}
                continue
            if "fatal" in reply:
                fatal = RunError(f"a worker could not start: {reply['fatal']}")
                for note in reply["notes"]:
                    fatal.add_note(note)
                raise fatal
            if worker.job is None:
                worker.ready = self._any_ready = True
                continue
            self._deaths = 0
            done[worker.job] = reply
            worker.job = None

    def _bury(self, number: int) -> str:
        """Replace a dead worker and say how it ended."""
        worker = self._workers[number]
        end_worker(worker.process, worker.connection)
        died = describe_exit(worker.process.returncode)
        self._deaths += 1
        if self._deaths > MAX_DEATHS * len(self._workers):
            remedy = (
                "check memory, or use fewer workers"
                if self._any_ready
                else "none of them could start: see what they wrote above"
            )
            raise RunError(
                f"{self._deaths} worker processes died one after another, the last one {died}; "
                f"{remedy}"
            )
        self._workers[number] = self._start(self._devices[number])
        return died


def describe_exit(code: int) -> str:
    """Say how a process ended."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
