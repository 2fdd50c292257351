"""Predictions under a changing budget: one elastic file, a submodel chosen for every request.

A small family is trained on digits and written to one file. Then a device with changing load asks
for answers within a time that rises and falls; the model switches to the largest submodel that
keeps to it. Accuracy and latency over time are drawn to `elastic_serving.svg`.

    python examples/elastic_serving.py
"""

import math
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import matplotlib as mpl
import torch

import nefl
from nefl.asking.pictures import input_transform

REQUESTS, WINDOW = 300, 25


def train_and_export(folder: Path) -> Path:
    """Train a family for a few rounds and write all of it to one file."""
    settings = nefl.load_recipe("digits").to_dict() | {"rounds": 12}
    settings["engine"] |= {"name": "serial"}
    result = nefl.train(settings, folder / "run")
    return nefl.export_family(result.path, folder / "digits.safetensors").path


def draw(budgets: list[float], latencies: list[float], used: list[int], right: list[bool]) -> None:
    """Draw what was asked for, what it took, who answered, and how often that was right."""
    mpl.use("svg")
    from matplotlib import pyplot as plt

    moving = [
        sum(right[max(0, i - WINDOW) : i + 1]) / len(right[max(0, i - WINDOW) : i + 1])
        for i in range(len(right))
    ]
    figure, (above, middle, below) = plt.subplots(3, 1, sharex=True, figsize=(8, 7))
    above.plot([1e3 * b for b in budgets], label="budget", color="#888888", linestyle="--")
    above.plot([1e3 * s for s in latencies], label="taken", color="#0b57a4", linewidth=1)
    above.set_ylabel("latency, ms")
    above.set_ylim(0, 2.5e3 * max(budgets))
    above.legend(loc="upper right")
    middle.step(range(len(used)), used, where="post", color="#0b57a4")
    middle.set_ylabel("submodel")
    middle.set_yticks(sorted(set(used)))
    below.plot(moving, color="#0b57a4")
    below.set_ylabel(f"accuracy, last {WINDOW}")
    below.set_xlabel("request")
    below.set_ylim(0, 1.02)
    figure.suptitle("One elastic file under a changing latency budget")
    figure.tight_layout()
    figure.savefig("elastic_serving.svg")


def main() -> None:
    """Train, export, serve under a changing budget, draw."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        file = train_and_export(Path(folder))
        print(f"{file.name}: {file.stat().st_size} bytes, all submodels")
        model = nefl.ElasticModel(nefl.load(file))
    table = model.measure(repeats=30)
    print("measured:", ", ".join(f"{1e3 * seconds:.2f} ms" for seconds in table))

    test = nefl.data.load_dataset("digits").test
    transform = input_transform(model.trained.card)
    chance = random.Random(0)  # noqa: S311 -- a load that wavers, the same in every run
    budgets, latencies, used, right, switches = [], [], [], [], 0
    for request in range(REQUESTS):
        # Two slow waves between the cheapest and the dearest submodel, and a tremble on top.
        wave = 0.5 - 0.5 * math.cos(4 * math.pi * request / REQUESTS)
        low, high = min(table), 1.3 * max(table)
        budget = (low + (high - low) * wave) * chance.uniform(0.97, 1.03)
        before = model.current
        model.select(nefl.Budget(latency=budget))
        switches += model.current != before
        image = torch.tensor(test["image"][request : request + 1])
        started = perf_counter()
        with torch.inference_mode():
            logits = model(transform(image))
        latencies.append(perf_counter() - started)
        budgets.append(budget)
        used.append(model.current)
        right.append(bool(logits.argmax() == int(test["label"][request])))
    print(f"{REQUESTS} requests, {switches} switches, {sum(right) / REQUESTS:.3f} right")
    draw(budgets, latencies, used, right)
    print("drawn: elastic_serving.svg")


if __name__ == "__main__":
    main()
