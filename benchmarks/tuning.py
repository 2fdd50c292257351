"""What each setting of a training process brings: malloc, memory format, compiled steps, bf16.

    python benchmarks/tuning.py [--models resnet8 resnet20] [--submodels 1 3 5] [--repeats 3]
                                [--settings NAME …] [--compile]

One training step with a batch of 32, one thread: milliseconds of processor time, and the median
ratio to the step that a run makes by default, timed in turns with it in the same process. Every
setting is a fresh process, since malloc's thresholds cannot be taken back; settings take turns.
Before a step is timed, what it does to the weights is compared with the default's.

Settings of compiled steps (`--compile` takes them all): `compile` is what `local.compile` does;
those that begin with it change one thing. `compile:plain` has torch's own options, `:welford` takes
variances in one go, `:calls` goes from kernel to kernel in Python, `:layout` has channels last
whatever a run would have, `:loss` compiles the loss with the model, `:tuned` lets the compiler try
matrix products, `:contract` lets it fuse products and sums, `:bf16` has them in bfloat16.
"""

import argparse
import copy
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nefl import make_family
from nefl.client.optimiser import make_optimiser
from nefl.client.precision import compute_in
from nefl.config import LocalConfig
from nefl.engines.compiled import OPTIONS, prepare_compiler
from nefl.engines.site import pick_memory_format
from nefl.engines.tuning import tune_process

CASES = {"resnet8": (1, 8, 8), "resnet20": (3, 32, 32), "resnet18": (3, 32, 32)}
"""The models, and the images they are given."""

BATCH = 32
STEPS = 30
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
CHANGED: dict[str, dict[str, Any]] = {
    "compile": {},
    "compile:welford": {"cpp.use_two_step_variance_threshold": 1024},
    "compile:calls": {"cpp_wrapper": False},
    "compile:layout": {"layout_optimization": True},
    "compile:loss": {},
    "compile:tuned": {"max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN"},
    "compile:contract": {"cpp.enable_floating_point_contract_flag": "fast"},
    "compile:bf16": {},
}
"""Settings of compiled steps, and the options that are not as `local.compile` has them."""

EAGER = ("no malloc", "contiguous", "channels_last", "bf16")
COMPILED = (*CHANGED, "compile:plain")
TOLERANCE = 2e-2
"""How far a step may move weights from where the default's moves them; the rate is 0.1."""

Step = Callable[[], object]


def make_step(model: nn.Module, setting: str, layout: torch.memory_format, images: Tensor) -> Step:
    """Return a training step of a model under a setting."""
    if setting in LAYOUTS:
        layout = LAYOUTS[setting]
    if setting.endswith("bf16"):
        compute_in(model, "bf16")
    labels = torch.arange(len(images)) % 10
    images = images.contiguous(memory_format=layout)
    optimiser = make_optimiser(model, LocalConfig())

    def loss() -> Tensor:
        return functional.cross_entropy(model(images), labels)

    if setting.startswith("compile"):
        own = {**OPTIONS, "layout_optimization": layout == torch.channels_last}
        options = {} if setting == "compile:plain" else own | CHANGED[setting]
        if setting == "compile:loss":
            loss = torch.compile(loss, dynamic=False, options=options)
        else:
            model.forward = torch.compile(model.forward, dynamic=False, options=options)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss())
        optimiser.step()

    return step


def measure(name: str, submodels: list[int], setting: str) -> list[list[float]]:
    """Return milliseconds and ratio for each submodel."""
    torch.set_num_threads(1)
    if setting != "no malloc":
        tune_process(1)
    if setting.startswith("compile"):
        prepare_compiler(2 * len(submodels))
    family = make_family(name, "nefl-wd", input_shape=CASES[name])
    found = []
    for submodel in submodels:
        torch.manual_seed(0)
        usual = family.build(family.specs[submodel - 1]).train()
        tried = copy.deepcopy(usual)
        images = torch.randn(BATCH, *CASES[name])
        layout = pick_memory_format("auto", family, submodel, torch.device("cpu"))
        first, second = (
            make_step(m, s, layout, images) for m, s in ((usual, "default"), (tried, setting))
        )
        first()
        second()
        for mine, theirs in zip(tried.parameters(), usual.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=TOLERANCE)
        late = [(timed(first), timed(second)) for _ in range(STEPS)][5:]
        milliseconds = 1e3 * statistics.median(b for _, b in late)
        found.append([milliseconds, statistics.median(b / a for a, b in late)])
    return found


def timed(step: Step) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--submodels", nargs="+", type=int, default=[1, 3, 5])
    parser.add_argument("--settings", nargs="+", choices=[*EAGER, *COMPILED])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(measure(given.one[0], given.submodels, given.one[1])))
        return
    tried = given.settings or [*EAGER, *(COMPILED if given.compile else ())]
    wanted = ["--submodels", *map(str, given.submodels)]
    for name in given.models:
        results: dict[str, list[list[list[float]]]] = {setting: [] for setting in tried}
        for _ in range(given.repeats):
            for setting in tried:
                command = [sys.executable, __file__, "--one", name, setting, *wanted]
                done = subprocess.run(command, capture_output=True, text=True)
                with suppress(IndexError, ValueError):
                    results[setting].append(json.loads(done.stdout.splitlines()[-1]))
                if done.returncode:  # the compiler cannot do everything everywhere
                    print(f"{name:9} {setting}: {done.stderr.strip().splitlines()[-1]}")
        for setting, rows in results.items():
            cells = [
                f"{statistics.median(c[0] for c in column):7.2f} ms "
                f"{statistics.median(c[1] for c in column):.2f}"
                for column in zip(*rows, strict=True)
            ]
            print(f"{name:9} {setting:18} " + "   ".join(cells), flush=True)


if __name__ == "__main__":
    main()
