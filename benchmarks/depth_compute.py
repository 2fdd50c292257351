"""Whether a submodel's compute shrinks as its MACs do: skipped blocks must cost nothing.

    python benchmarks/depth_compute.py [--model resnet56] [--method nefl-d] [--repeats 9]

Each submodel's forward and backward pass is timed in turns with the full model's. A network that
computes skipped blocks and multiplies them by zero would show a time ratio of 1 in every row.
"""

import argparse
import statistics
import time

import torch
from torch import nn

from nefl import make_family
from nefl.engines.site import pick_memory_format
from nefl.engines.tuning import tune_process
from nefl.models.images import SMALL_IMAGES
from nefl.nesting.profile import profile_family

BATCH = 32


def step_seconds(model: nn.Module, images: torch.Tensor) -> float:
    start = time.perf_counter()
    torch.autograd.backward(model(images).square().mean())
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet56")
    parser.add_argument("--method", default="nefl-d")
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    tune_process(1)
    family = make_family(given.model, given.method)
    rows = profile_family(family, SMALL_IMAGES, BATCH)
    models = [family.build(spec).train() for spec in family.specs]
    layout = pick_memory_format("auto", family, len(family), torch.device("cpu"))
    images = torch.randn(BATCH, 3, 32, 32).contiguous(memory_format=layout)
    ratios: list[list[float]] = [[] for _ in models]
    for repeat in range(given.repeats + 2):
        seconds = [step_seconds(model, images) for model in models]
        if repeat >= 2:  # the first passes choose kernels and fill caches
            for each, took in zip(ratios, seconds, strict=True):
                each.append(took / seconds[-1])
    print(f"{given.model} {given.method}, batch {BATCH}, forward and backward, one thread")
    for row, measured in zip(rows, ratios, strict=True):
        macs = row.macs_total / rows[-1].macs_total
        print(f"submodel {row.index}: MACs {macs:.2f}, time {statistics.median(measured):.2f}")


if __name__ == "__main__":
    main()
