"""The workers engine agrees with the serial one, bit for bit, and outlives its workers."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest
import torch

import nefl
from nefl.artifacts.checkpoint import state_sha256
from nefl.config import EngineConfig
from nefl.config.reading import config_from, with_settings
from nefl.data import Partition
from nefl.engines import workers as workers_module
from nefl.engines.processes import descendants
from nefl.engines.serial import SerialEngine
from nefl.engines.sharing import SharedWeights, make_shared_file
from nefl.engines.waiting import WaitingWorkers, end_worker
from nefl.engines.workers import WorkersEngine, describe_exit
from nefl.errors import DataError, RunError
from nefl.methods import make_family
from nefl.nesting.corners import extract
from nefl.rounds import run_round
from nefl.running import lifecycle
from nefl.running.assembly import Setting, assemble
from nefl.server.aggregate import Aggregate
from nefl.state import ClientFailure, ClientUpdate, TrainTask


@contextmanager
def workers_engine(setting: Setting, folder: Path, count: int) -> Iterator[WorkersEngine]:
    setting.partition.save(folder / "partition.safetensors")
    config = replace(setting.config, engine=EngineConfig("workers", count, ("cpu",)))
    engine = replace(setting, config=config).engine(folder / "partition.safetensors")
    assert isinstance(engine, WorkersEngine)
    try:
        yield engine
    finally:
        engine.close()


def serial_engine(setting: Setting) -> SerialEngine:
    torch.set_num_threads(1)
    return SerialEngine(setting.site(), setting.family)


def test_shared_weights_are_the_same_in_every_mapping() -> None:
    family = make_family("resnet8", "nefl-wd")
    descriptor = make_shared_file()
    mine = SharedWeights(family, 3, descriptor)
    theirs = SharedWeights(family, 3, descriptor)
    state = family.initial_state(5)
    mine.write(state)
    assert state_sha256(theirs.state) == state_sha256(state)
    for submodel in range(1, 6):
        for slot in range(3):
            for tensor in mine.slot(slot, submodel).values():
                tensor.fill_(slot + submodel)
            assert state_sha256(theirs.state) == state_sha256(state), "slots keep to themselves"
    for slot in range(3):
        assert all((t == slot + 5).all() for t in theirs.slot(slot, 5).values())
    os.close(descriptor)


def workers_of_this_process() -> list[int]:
    found = []
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            if b"nefl.engines.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_workers_start_while_a_run_is_prepared_and_end_if_it_cannot_be(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[int] = []

    def preparing(*_given: object) -> Setting:
        there.extend(workers_of_this_process())
        raise DataError("no data")

    monkeypatch.setattr(lifecycle, "assemble", preparing)
    config = with_settings(quick, {"engine.name": "workers", "engine.workers": 2})
    with pytest.raises(DataError, match="no data"):
        nefl.train(config, tmp_path / "run")
    assert len(there) == 2
    assert not workers_of_this_process()


def test_a_worker_that_died_waiting_is_replaced() -> None:
    with closing(WaitingWorkers(1)) as waiting:
        dead, _ = waiting._waiting[0]
        dead.kill()
        dead.wait()
        process, connection = waiting.take()
        assert process.pid != dead.pid
        assert process.poll() is None
        end_worker(process, connection)


@pytest.mark.parametrize(("count", "method"), [(1, "nefl-wd"), (3, "nefl-wd"), (2, "heterofl")])
def test_engines_agree_bit_for_bit(
    quick: dict[str, Any], tmp_path: Path, count: int, method: str
) -> None:
    setting = assemble(config_from(with_settings(quick, {"model.method": method})))
    plan = setting.plan
    state = setting.family.initial_state(1)
    expected, _ = run_round(state, plan, serial_engine(setting))
    scores = serial_engine(setting).evaluate(expected, range(1, 6))
    with workers_engine(setting, tmp_path, count) as engine:
        got, report = run_round(state, plan, engine)
        assert not report.failures
        assert state_sha256(got) == state_sha256(expected)
        assert engine.evaluate(got, range(1, 6)) == scores


def with_bad_client(setting: Setting, client: int) -> Setting:
    """Give one client an example that does not exist."""
    indices = setting.partition.indices.copy()
    indices[setting.partition.offsets[client]] = 10**6
    return replace(setting, partition=Partition(indices, setting.partition.offsets))


def test_a_client_that_raises_costs_its_update_only(quick: dict[str, Any], tmp_path: Path) -> None:
    setting = with_bad_client(assemble(config_from(quick)), 3)
    state = setting.family.initial_state(0)
    tasks = [TrainTask(1, client, 5 - client) for client in range(5)]
    hashes = []
    with workers_engine(setting, tmp_path, 2) as engine:
        for each in (engine, serial_engine(setting)):
            total = Aggregate(state, setting.family)
            results = []
            for result in each.train(state, tasks):
                results.append(result)
                if isinstance(result, ClientUpdate):
                    total.add(result)
            assert [r.task for r in results] == tasks
            failed = [r for r in results if isinstance(r, ClientFailure)]
            assert [f.task.client for f in failed] == [3]
            assert "IndexError" in failed[0].reason
            hashes.append(state_sha256(total.finish()))
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("raised", ["SystemExit", "GeneratorExit"])
def test_code_that_ends_the_process_costs_its_update_only(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: str
) -> None:
    monkeypatch.delitem(sys.modules, "ending", raising=False)
    (tmp_path / "ending.py").write_text(
        "import nefl\n"
        "class Ending(nefl.Objective):\n"
        "    def before_step(self, local):\n"
        "        if local.submodel == 1 and local.learning_rate:  # none when tried out\n"
        f"            raise {raised}('enough')\n"
        "method = nefl.Method('both', objective=Ending())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    setting = assemble(config_from(with_settings(quick, {"model.method": "ending:method"})))
    tasks = [TrainTask(1, 0, 1), TrainTask(1, 1, 2)]
    with workers_engine(setting, tmp_path, 1) as engine:
        for each in (engine, serial_engine(setting)):
            ended, trained = each.train(setting.family.initial_state(0), tasks)
            assert isinstance(ended, ClientFailure)
            assert f"{raised}: enough" in ended.reason
            assert isinstance(trained, ClientUpdate)


def test_a_worker_that_dies_costs_nothing_and_is_replaced(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    setting = assemble(config_from(quick))
    state = setting.family.initial_state(0)
    tasks = [TrainTask(1, client, 5) for client in range(8)]
    with workers_engine(setting, tmp_path, 2) as engine:
        while not all(worker.ready for worker in engine._workers):
            assert not any(isinstance(r, ClientFailure) for r in engine.train(state, tasks[:2]))
        before = engine.pids
        # Frozen, it certainly holds a task when it is killed.
        os.kill(before[0], signal.SIGSTOP)
        Timer(1.0, os.kill, (before[0], signal.SIGKILL)).start()
        results = list(engine.train(state, tasks))
        assert [r.task for r in results if isinstance(r, ClientUpdate)] == tasks
        assert len(set(engine.pids) - set(before)) == 1


@pytest.mark.long
def test_a_task_that_kills_its_workers_fails(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os, sys\n"
        "from nefl import Family, SubmodelSpec\n"
        "from nefl.models.table import ModelBuilder\n"
        "from nefl.nesting.signature import Signature\n"
        "def die(module, inputs):\n"
        "    program = getattr(sys.modules['__main__'].__spec__, 'name', '')\n"
        "    if module.training and program == 'nefl.engines.worker':\n"
        "        os._exit(7)\n"
        "def build(spec, build):\n"
        "    module = build(spec)\n"
        "    if spec.stage_width(0) < 1:\n"
        "        module.register_forward_pre_hook(die)\n"
        "    return module\n"
        "def family(classes, input_shape):\n"
        "    from functools import partial\n"
        "    table = ModelBuilder('resnet8', Signature(input_shape, classes))\n"
        "    full = table.full_blocks\n"
        "    return Family(partial(build, build=table), (SubmodelSpec(full, 0.5), "
        "SubmodelSpec(full)))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(workers_module, "MAX_TRIES", 2)
    setting = assemble(config_from(with_settings(quick, {"model.name": "deadly:family"})))
    tasks = [TrainTask(1, 0, 1), TrainTask(1, 1, 2)]
    with workers_engine(setting, tmp_path, 1) as engine:
        dead, alive = engine.train(setting.family.initial_state(0), tasks)
    assert isinstance(dead, ClientFailure)
    assert "its worker process ended with exit code 7, 2 times" in dead.reason
    assert isinstance(alive, ClientUpdate)


@pytest.mark.long
def test_a_worker_that_dies_while_evaluating_costs_nothing(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    setting = assemble(config_from(quick))
    state = setting.family.initial_state(0)
    expected = serial_engine(setting).evaluate(state, range(1, 6))
    with workers_engine(setting, tmp_path, 2) as engine:
        while not all(worker.ready for worker in engine._workers):
            engine.evaluate(state, [1, 2])
        frozen = engine.pids[0]
        os.kill(frozen, signal.SIGSTOP)
        Timer(1.0, os.kill, (frozen, signal.SIGKILL)).start()
        assert engine.evaluate(state, range(1, 6)) == expected
        assert frozen not in engine.pids


def test_a_file_in_the_current_folder_does_not_pass_for_a_library(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('the wrong random')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    setting = assemble(config_from(quick))
    with workers_engine(setting, tmp_path, 1) as engine:
        results = list(engine.train(setting.family.initial_state(0), [TrainTask(1, 0, 1)]))
    assert isinstance(results[0], ClientUpdate)


def test_workers_that_keep_dying_stop_the_run(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "MAX_DEATHS", 1)
    setting = assemble(config_from(quick))
    state = setting.family.initial_state(0)
    with workers_engine(setting, tmp_path, 1) as engine:
        os.kill(engine.pids[0], signal.SIGKILL)
        engine._setup["dataset"] = 5  # the next one dies with an error of its own
        with pytest.raises(RunError, match="could not start|died one after another"):
            list(engine.train(state, [TrainTask(1, 0, 1)]))


def test_a_worker_that_cannot_start_says_why(quick: dict[str, Any], tmp_path: Path) -> None:
    setting = assemble(config_from(quick))
    with workers_engine(setting, tmp_path, 1) as engine:
        os.kill(engine.pids[0], signal.SIGKILL)
        (tmp_path / "partition.safetensors").write_bytes(b"nonsense")
        with pytest.raises(RunError, match="could not start: DataError.*partition.safetensors"):
            list(engine.train(setting.family.initial_state(0), [TrainTask(1, 0, 1)]))


def test_leaving_a_round_early_does_not_spoil_the_next(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    setting = assemble(config_from(quick))
    state = setting.family.initial_state(0)
    tasks = [TrainTask(1, client, 5 - client % 5) for client in range(8)]
    plan = setting.plan
    with workers_engine(setting, tmp_path, 2) as engine:
        for _ in engine.train(state, tasks):
            break
        got, _ = run_round(state, plan, engine)
    expected, _ = run_round(state, plan, serial_engine(setting))
    assert state_sha256(got) == state_sha256(expected)


def test_workers_end_with_the_engine(quick: dict[str, Any], tmp_path: Path) -> None:
    setting = assemble(config_from(quick))
    with workers_engine(setting, tmp_path, 2) as engine:
        pids = engine.pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_updates_arrive_in_task_order_whatever_their_size(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    setting = assemble(config_from(quick))
    state = setting.family.initial_state(0)
    tasks = [TrainTask(1, client, 1 + 4 * (client % 2)) for client in range(10)]
    with workers_engine(setting, tmp_path, 3) as engine:
        seen = []
        for result in engine.train(state, tasks):
            assert isinstance(result, ClientUpdate)
            seen.append(result.task)
            layout = setting.family.layout(result.task.submodel)
            assert result.trained.keys() == layout.keys()
            start = extract(state, setting.family, result.task.submodel)
            assert not torch.equal(result.trained["fc.weight"], start["fc.weight"])
    assert seen == tasks


def test_words_for_the_end_of_a_process() -> None:
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(3) == "ended with exit code 3"


def test_partition_of_the_fixture_is_what_it_seems(quick: dict[str, Any]) -> None:
    setting = assemble(config_from(quick))
    assert setting.partition.clients == 20
    assert np.all(setting.partition.sizes == 10)
