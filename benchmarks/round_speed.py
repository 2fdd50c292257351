"""A round of nefl against a bare loop that trains the same submodels on the same batches.

    python benchmarks/round_speed.py [--clients 16] [--repeats 5] [--workers 2]

ResNet20 under NeFL-WD on 32×32 images. The bare loop has as many processes, takes the same tasks
from a queue in the same order, augments the same batches and steps the same optimiser; there are
no weights to fetch, nothing to return, nothing to average. Both are timed in turns in one run.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from nefl import TrainTask
from nefl.client.optimiser import make_optimiser
from nefl.config import RunConfig
from nefl.config.reading import config_from
from nefl.engines.tuning import tune_process
from nefl.rounds import run_round
from nefl.running.assembly import assemble
from nefl.seeds import Purpose, number_for
from nefl.server.cohort import assign_submodels, sample_cohort


def make_config(clients: int, examples: int, workers: int) -> RunConfig:
    options = {"shape": [3, 32, 32], "train": 100 * examples, "test": 100, "classes": 10}
    return config_from(
        {
            "model": {"name": "resnet20", "method": "nefl-wd"},
            "data": {"name": "synthetic", "options": options, "augment": "crop-flip"},
            "clients": {"count": 100, "per_round": clients},
            "local": {"epochs": 1},
            "engine": {"name": "workers", "workers": workers, "device": "cpu"},
        }
    )


def bare_process(values: dict[str, Any], tasks: "Queue[Any]", done: "Queue[float]") -> None:
    """Train what comes from the queue, with nothing federated around it."""
    config = config_from(values)
    tune_process(1)
    setting = assemble(config)
    task, local = setting.task, config.local
    modules = [setting.family.build(spec) for spec in setting.family.specs]
    done.put(0.0)
    while (job := tasks.get()) is not None:
        round_number, client, submodel = job
        rows = setting.partition.client(client)
        columns = {name: torch.from_numpy(c[rows]) for name, c in task.train.items()}
        model = modules[submodel - 1].train()
        optimiser = make_optimiser(model, local)
        seed = number_for(config.seed, Purpose.TRAINING, round_number, client)
        generator = torch.Generator().manual_seed(seed)
        for chosen in torch.split(torch.randperm(len(rows), generator=generator), 32):
            some = {name: column[chosen] for name, column in columns.items()}
            batch = task.make_inputs(some, generator)
            batch = batch.contiguous(memory_format=torch.channels_last)
            loss = functional.cross_entropy(model(batch), some["label"])
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            optimiser.step()
        done.put(float(loss.detach()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--examples", type=int, default=640)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    config = make_config(given.clients, given.examples, given.workers)
    tune_process(1)
    setting = assemble(config)
    plan = setting.plan
    context = multiprocessing.get_context("spawn")
    queue, done = context.Queue(), context.Queue()
    arguments = (config.to_dict(), queue, done)
    processes = [context.Process(target=bare_process, args=arguments) for _ in range(given.workers)]
    for process in processes:
        process.start()
    for _ in processes:
        done.get(timeout=120)
    with tempfile.TemporaryDirectory() as folder:
        setting.partition.save(Path(folder) / "partition.safetensors")
        engine = setting.engine(Path(folder) / "partition.safetensors")
        state = setting.family.initial_state(0)
        list(engine.train(state, [TrainTask(1, c, 1 + c % 5) for c in range(20)]))  # warm
        ratios, bare, nested = [], [], []
        for _ in range(given.repeats):
            number = state.round_number + 1
            tasks = assign_submodels(sample_cohort(plan.cohort, number), plan.cohort, number)
            start = time.perf_counter()
            for task in tasks:
                queue.put((task.round_number, task.client, task.submodel))
            for _ in tasks:
                done.get(timeout=600)
            bare.append(time.perf_counter() - start)
            start = time.perf_counter()
            state, report = run_round(state, plan, engine)
            nested.append(time.perf_counter() - start)
            assert not report.failures
            ratios.append(nested[-1] / bare[-1])
            print(f"bare {bare[-1]:.2f} s, nefl {nested[-1]:.2f} s, ratio {ratios[-1]:.3f}")
        engine.close()
    for _ in processes:
        queue.put(None)
    print(
        f"median of {given.repeats}: bare {statistics.median(bare):.2f} s, "
        f"nefl {statistics.median(nested):.2f} s, ratio {statistics.median(ratios):.3f}"
    )


if __name__ == "__main__":
    main()
