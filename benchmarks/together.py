"""Clients of one submodel trained at once against one by one.

    python benchmarks/together.py
    python benchmarks/together.py --device cuda --clients 32

The updates are compared first: their weights must agree to 1e-4. Then both are timed in turns, one
thread, by the processor's time on a CPU and by the clock on a GPU.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from nefl.client.together import train_together
from nefl.client.training import train
from nefl.config.reading import config_from
from nefl.engines.devices import pick_device, wait_for
from nefl.engines.site import Site
from nefl.engines.tuning import tune_for
from nefl.nesting.corners import extract
from nefl.running.assembly import assemble
from nefl.state import TrainTask

MODELS: dict[str, dict[str, Any]] = {
    "resnet8": {"name": "synthetic", "options": {"shape": [1, 8, 8]}},
    "resnet20": {"name": "synthetic", "options": {"shape": [3, 32, 32]}},
    "mlp": {"name": "breast-cancer"},
}
"""Models, and the data that each is trained on."""


def compare(model: str, device: str, clients: int, repeats: int) -> None:
    """Print the seconds of a round of clients for the smallest and the largest submodel."""
    config = config_from(
        {
            "model": {"name": model, "method": "nefl-w"},
            "data": MODELS[model],
            "clients": {"count": clients, "per_round": clients},
            "local": {"epochs": 1, "batch_size": 32, "learning_rate": 0.01},
            "engine": {"name": "serial", "devices": device},
        }
    )
    tune_for(config)
    setting = assemble(config)
    site, state = setting.site(), setting.initial_state()
    examples = int(min(site.sizes))
    for submodel in (1, len(setting.family)):
        tasks = [TrainTask(1, client, submodel) for client in range(clients)]
        weights = extract(state, setting.family, submodel)
        alone, together = loops(site, tasks, weights, examples)
        for one, other in zip(alone(), together(), strict=True):
            for name, tensor in one.items():
                torch.testing.assert_close(other[name], tensor, rtol=1e-4, atol=1e-4)
        taken: dict[str, list[float]] = {"alone": [], "together": []}
        for _ in range(repeats):
            for name, loop in (("alone", alone), ("together", together)):
                taken[name].append(seconds(loop, device))
        before, now = (statistics.median(each) for each in taken.values())
        shown = f"{before * 1e3:8.1f} ms  {now * 1e3:8.1f} ms  {now / before:.2f}"
        print(f"{model:<9} {submodel}  {shown}")


def loops(
    site: Site, tasks: list[TrainTask], weights: dict[str, torch.Tensor], examples: int
) -> tuple[Callable[[], list[dict[str, torch.Tensor]]], ...]:
    """Return both ways to train tasks on equally many examples of each client."""
    rows = []
    for task in tasks:
        own, how = site.given_to(task)
        rows.append({name: column[:examples] for name, column in own.items()})
    model = site.ready(tasks[0].submodel, weights)

    def load() -> None:
        state = model.state_dict()
        with torch.no_grad():
            for name, tensor in weights.items():
                state[name].copy_(tensor)

    def alone() -> list[dict[str, torch.Tensor]]:
        found = []
        for task, own in zip(tasks, rows, strict=True):
            load()
            update, _ = train(task, model, own, how)
            found.append({name: tensor.clone() for name, tensor in update.trained.items()})
        return found

    def together() -> list[dict[str, torch.Tensor]]:
        load()
        return [dict(update.trained) for update in train_together(tasks, model, rows, how)]

    return alone, together


def seconds(loop: Callable[[], object], device: str) -> float:
    """Return what a loop takes."""
    where = pick_device(device)
    clock = time.process_time if where.type == "cpu" else time.perf_counter
    started = clock()
    loop()
    wait_for(where)
    return clock() - started


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    given = parser.parse_args()
    print("model     #  one by one      together   ratio")
    for model in given.models:
        compare(model, given.device, given.clients, given.repeats)


if __name__ == "__main__":
    main()
