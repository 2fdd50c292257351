"""What each setting of a training process brings: malloc, memory format, torch.compile.

    python benchmarks/tuning.py [--compile] [--repeats 3]

One training step of submodels 1, 3 and 5 with a batch of 32, one thread, in milliseconds. Every
combination is a fresh process, since malloc's thresholds cannot be taken back; combinations take
turns, and medians are printed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import torch
from torch.nn import functional

from nefl import make_family
from nefl.client.optimiser import make_optimiser
from nefl.config import LocalConfig
from nefl.engines.tuning import tune_process

CASES = [("resnet8", (1, 8, 8)), ("resnet20", (3, 32, 32)), ("resnet18", (3, 32, 32))]
SETTINGS = [(), ("malloc",), ("channels_last",), ("malloc", "channels_last")]


def step_milliseconds(model: str, shape: tuple[int, int, int], settings: list[str]) -> list[float]:
    if "malloc" in settings:
        tune_process(1)
    torch.set_num_threads(1)
    layout = torch.channels_last if "channels_last" in settings else torch.contiguous_format
    family = make_family(model, "nefl-wd", input_shape=shape)
    medians = []
    for submodel in (1, 3, 5):
        module = family.build(family.specs[submodel - 1]).train()
        forward = torch.compile(module) if "compile" in settings else module
        optimiser = make_optimiser(module, LocalConfig())
        images = torch.randn(32, *shape).contiguous(memory_format=layout)
        labels = torch.randint(10, (32,))
        times = []
        for _ in range(15):
            start = time.perf_counter()
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(functional.cross_entropy(forward(images), labels))
            optimiser.step()
            times.append(1e3 * (time.perf_counter() - start))
        medians.append(statistics.median(times[3:]))
    return medians


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs="*")
    given = parser.parse_args()
    if given.one is not None:
        model, shape = CASES[int(given.one[0])]
        print(json.dumps(step_milliseconds(model, shape, given.one[1:])))
        return
    tried = [*SETTINGS, ("malloc", "channels_last", "compile")] if given.compile else SETTINGS
    for number, (model, _) in enumerate(CASES):
        results: dict[tuple[str, ...], list[list[float]]] = {key: [] for key in tried}
        for _ in range(given.repeats):
            for settings in tried:
                command = [sys.executable, __file__, "--one", str(number), *settings]
                output = subprocess.run(command, capture_output=True, text=True, check=True)
                results[settings].append(json.loads(output.stdout.splitlines()[-1]))
        for settings, rows in results.items():
            steps = [statistics.median(column) for column in zip(*rows, strict=True)]
            name = "+".join(settings) or "plain"
            print(f"{model:9} {name:28} " + "  ".join(f"{step:7.1f}" for step in steps))


if __name__ == "__main__":
    main()
