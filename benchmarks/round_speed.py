"""A round of nefl against a bare loop that trains the same submodels on the same batches.

    python benchmarks/round_speed.py [--model resnet20] [--compile] [--precision float32]
                                     [--clients 16] [--repeats 5] [--workers 2]

ResNet20 or ResNet18 under NeFL-WD on 32×32 images, or ResNet8 on 8×8 ones. The bare loop has as
many processes, takes the same tasks from a queue in the same order, augments the same batches and
steps the same optimiser; there are no weights to fetch, nothing to return, nothing to average. Both
are timed in turns in one run, and their processor time is compared too, in which other work on the
machine counts little. With `--compile`, or with another precision, that is nefl's alone:
the bare loop stays eager and in float32. Compiling is over before anything is timed.

Before that, the largest submodel's update of one client is compared with that of an eager run.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from dataclasses import replace
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from nefl import TrainTask
from nefl.client.optimiser import make_optimiser
from nefl.config import RunConfig
from nefl.config.reading import config_from
from nefl.engines.site import Site, pick_memory_format
from nefl.engines.tuning import tune_process
from nefl.engines.workers import WorkersEngine
from nefl.nesting.sets import extract_all
from nefl.rounds import run_round
from nefl.running.assembly import Setting, assemble
from nefl.seeds import Purpose, number_for
from nefl.server.cohort import assign_submodels, sample_cohort

SHAPES = {"resnet8": (1, 8, 8), "resnet20": (3, 32, 32), "resnet18": (3, 32, 32)}
"""The models, and the images they are given."""

PRECISIONS = ("float32", "bf16")

TOLERANCE = 1e-2
"""How far a client's update may lie from an eager one's, as a share of that one's length. A ReLU
that falls on the other side of zero by rounding alone leaves 1e-3 in ResNet18."""


def make_config(model: str, clients: int, examples: int, workers: int) -> RunConfig:
    options = {"shape": SHAPES[model], "train": 100 * examples, "test": 100, "classes": 10}
    return config_from(
        {
            "model": {"name": model, "method": "nefl-wd"},
            "data": {"name": "synthetic", "options": options, "augment": "crop-flip"},
            "clients": {"count": 100, "per_round": clients},
            "local": {"epochs": 1},
            "engine": {"name": "workers", "workers": workers, "device": "cpu"},
        }
    )


def bare_process(values: dict[str, Any], tasks: "Queue[Any]", done: "Queue[float]") -> None:
    """Train what comes from the queue, with nothing federated around it."""
    os.setsid()  # as workers do: a busy machine is shared out among sessions
    config = config_from(values)
    tune_process(1)
    setting = assemble(config)
    task, local = setting.task, config.local
    modules = [setting.family.build(spec) for spec in setting.family.specs]
    formats = [
        pick_memory_format("auto", setting.family, k, torch.device("cpu"))
        for k in range(1, len(modules) + 1)
    ]
    done.put(0.0)
    while (job := tasks.get()) is not None:
        round_number, client, submodel = job
        rows = setting.partition.client(client)
        start = time.process_time()
        columns = {name: torch.from_numpy(c[rows]) for name, c in task.train.items()}
        model = modules[submodel - 1].train()
        optimiser = make_optimiser(model, local)
        seed = number_for(config.seed, Purpose.TRAINING, round_number, client)
        generator = torch.Generator().manual_seed(seed)
        for chosen in torch.split(torch.randperm(len(rows), generator=generator), 32):
            some = {name: column[chosen] for name, column in columns.items()}
            batch = task.make_inputs(some, generator)
            batch = batch.contiguous(memory_format=formats[submodel - 1])
            loss = functional.cross_entropy(model(batch), some["label"])
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            optimiser.step()
        done.put(time.process_time() - start)


def processor_seconds(pids: list[int]) -> float:
    """Return the processor time that these processes and this one have had."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split() for pid in pids]
    ticks = sum(int(each[11]) + int(each[12]) for each in fields)
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def distance(plain: Setting, quick: Setting) -> float:
    """Return how far a client's update is from the eager one's, as a share of that one's length.

    A few steps only: what differs in the last bits grows from step to step, in whichever order
    sums are made.
    """
    state = plain.family.initial_state(0)
    updates = []
    for setting in (plain, quick):
        local = replace(setting.config.local, epochs=1, learning_rate=1e-3)
        config = replace(setting.config, local=local)
        site = Site(config, setting.family, setting.task, setting.partition, torch.device("cpu"))
        given = extract_all(state, setting.family, len(setting.family), ())
        update = site.train(TrainTask(1, 0, len(setting.family)), given)
        moved = [update.trained[n].double() - given[n].double() for n in sorted(update.trained)]
        updates.append(torch.cat([part.flatten() for part in moved]))
    return float((updates[1] - updates[0]).norm() / updates[0].norm())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SHAPES, default="resnet20")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--examples", type=int, default=640)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    config = make_config(given.model, given.clients, given.examples, given.workers)
    tune_process(1)
    local = replace(config.local, compile=given.compile, precision=given.precision)
    setting = assemble(replace(config, local=local))
    plan = setting.plan
    apart = distance(assemble(config), setting)
    assert apart <= TOLERANCE, f"the update differs by {apart:.1e} of its length"
    print(f"an update differs from the eager one by {apart:.1e} of its length", flush=True)
    context = multiprocessing.get_context("spawn")
    queue, done = context.Queue(), context.Queue()
    arguments = (config.to_dict(), queue, done)
    processes = [
        context.Process(target=bare_process, args=arguments, daemon=True)
        for _ in range(given.workers)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        done.get(timeout=120)
    with tempfile.TemporaryDirectory() as folder:
        setting.partition.save(Path(folder) / "partition.safetensors")
        engine = setting.engine(Path(folder) / "partition.safetensors")
        assert isinstance(engine, WorkersEngine)
        state = setting.family.initial_state(0)
        # Warm: every worker has every submodel ready, which two of each in a row make likely.
        for k in range(len(setting.family), 0, -1):
            list(engine.train(state, [TrainTask(1, c, k) for c in range(2 * given.workers)]))
        ratios, processor, bare, nested = [], [], [], []
        for _ in range(given.repeats):
            number = state.round_number + 1
            tasks = assign_submodels(sample_cohort(plan.cohort, number), plan.cohort, number)
            start = time.perf_counter()
            for task in tasks:
                queue.put((task.round_number, task.client, task.submodel))
            worked = sum(done.get(timeout=600) for _ in tasks)
            bare.append(time.perf_counter() - start)
            start, before = time.perf_counter(), processor_seconds(engine.pids)
            state, report = run_round(state, plan, engine)
            nested.append(time.perf_counter() - start)
            assert not report.failures
            ratios.append(nested[-1] / bare[-1])
            processor.append((processor_seconds(engine.pids) - before) / worked)
            print(
                f"bare {bare[-1]:.2f} s, nefl {nested[-1]:.2f} s, ratio {ratios[-1]:.3f}",
                flush=True,
            )
        engine.close()
    for _ in processes:
        queue.put(None)
    print(
        f"median of {given.repeats}: bare {statistics.median(bare):.2f} s, "
        f"nefl {statistics.median(nested):.2f} s, ratio {statistics.median(ratios):.3f}, "
        f"of processor time {statistics.median(processor):.3f}"
    )


if __name__ == "__main__":
    main()
