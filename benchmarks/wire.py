"""What the wire formats cost: bytes, error and accuracy; the figures of docs/wire.md.

    python benchmarks/wire.py bytes
    python benchmarks/wire.py error --data PATH/TO/cifar10
    python benchmarks/wire.py accuracy runs/wire --data PATH/TO/cifar10
    python benchmarks/wire.py accuracy runs/wire-strokes --recipe digit-strokes --rounds 20

`bytes` adds up what a member of some families takes one way. `error` trains some rounds and tells
how far an update, and the weights, are from what they were after int8 with one scale for a tensor,
one for each row, and as nefl does it. `accuracy` makes the runs of the protocol, one after another
and one seed of all formats at a time; finished ones are left alone and others go on from their
checkpoint. It prints the table of those that are there.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import nefl
from nefl.config.reading import config_from, with_settings
from nefl.engines.serial import SerialEngine
from nefl.nesting.corners import extract
from nefl.recipes import load_recipe, recipe_values
from nefl.rounds import run_round
from nefl.running.assembly import assemble
from nefl.state import ClientUpdate, TrainTask
from nefl.wire.coding import DTYPES, count_scales, decode, encode
from nefl.wire.layouts import submodel_scales, travel_bytes

FAMILIES = (("resnet18", "nefl-wd"), ("resnet20_pooled", "nefl-d"), ("vit_tiny", "nefl-wd"))
RECIPE = "small-cifar10-resnet20_pooled-nefl-d"
SEEDS = (0, 1, 2)
ARMS = (("float32", "float32"), ("bfloat16", "bfloat16"), ("float32", "int8"), ("int8", "int8"))
"""The formats that are set beside each other, down and up."""

WARM_ROUNDS = 5
"""Rounds before an update is looked at."""

Rule = Callable[[Tensor], int]
RULES: Mapping[str, Rule] = {
    "a tensor": lambda _: 1,
    "each row": lambda tensor: tensor.shape[0],
    "each row of 16 or more": lambda tensor: count_scales(tensor.shape),
}
"""How many scales a tensor has, by what there is one for."""


def show_bytes() -> None:
    print("| family | member | float32 | bfloat16 | int8 |\n|---|---:|---:|---:|---:|")
    for model, method in FAMILIES:
        family = nefl.make_family(model, method)
        for submodel in range(1, len(family) + 1):
            plain, *small = (travel_bytes(family, submodel, (), form) for form in DTYPES)
            cells = " | ".join(f"{size:,} ({size / plain:.1%})" for size in small)
            print(f"| `{model}` `{method}` | {submodel} | {plain:,} | {cells} |")


def show_error(data: Path) -> None:
    digits = {"model.name": "vit_tiny", "model.method": "nefl-wd", "local.learning_rate": 0.01}
    runs: dict[str, dict[str, Any]] = {
        "`resnet20_pooled`": with_settings(recipe_values(RECIPE), {"data.root": str(data)}),
        "`vit_tiny`": with_settings(recipe_values("digits"), digits),
    }
    print("| model | what | one scale for | bytes of int8 | relative error |")
    print("|---|---|---|---:|---:|")
    for name, settings in runs.items():
        for what, tensors in trained_tensors(settings).items():
            for words, rule in RULES.items():
                size, error = coded_as(tensors, rule)
                print(f"| {name} | {what} | {words} | {size:,} | {error:.2%} |")


def trained_tensors(settings: dict[str, Any]) -> dict[str, list[Tensor]]:
    """Return what is made smaller of a client's update, and of the weights, of the full model."""
    setting = assemble(config_from(with_settings(settings, {"engine.name": "serial"})))
    family, engine = setting.family, SerialEngine(setting.site(), setting.family)
    state = setting.initial_state()
    for _ in range(WARM_ROUNDS):
        state, _ = run_round(state, setting.plan, engine)
    (update,) = engine.train(state, [TrainTask(state.round_number + 1, 0, len(family))])
    assert isinstance(update, ClientUpdate)
    start = extract(state, family, len(family))
    names = [n for n in submodel_scales(family, len(family)) if n in start]
    return {
        "update": [update.trained[n] - start[n] for n in names],
        "weights": [start[n] for n in names],
    }


def coded_as(tensors: list[Tensor], rule: Rule) -> tuple[int, float]:
    """Return the bytes of tensors in int8, and their error relative to their own length."""
    rng, size, off, length = np.random.default_rng(0), 0, 0.0, 0.0
    for tensor in tensors:
        coded = encode(tensor, "int8", rule(tensor), rng)
        size += coded.values.nbytes + coded.scales.nbytes
        off += float((decode(coded) - tensor).double().square().sum())
        length += float(tensor.double().square().sum())
    return size, (off / length) ** 0.5


def make_runs(out: Path, recipe: str, data: Path | None, rounds: int) -> None:
    chosen: dict[str, Any] = {"rounds": rounds, "server.evaluate_every": rounds}
    if data is not None:
        chosen["data.root"] = str(data)
    for seed in SEEDS:
        for down, up in ARMS:
            arm = {"seed": seed, "engine.name": "serial", "wire.down": down, "wire.up": up}
            folder = out / f"{down}-{up}-{seed}"
            if (folder / "summary.json").exists():
                continue
            print(folder, flush=True)
            if (folder / "config.json").exists():
                nefl.resume(folder)
            else:
                nefl.train(with_settings(recipe_values(recipe), {**chosen, **arm}), folder)


def show_accuracy(out: Path) -> None:
    print("| down | up | seeds | worst | average | best | bytes down | bytes up |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for down, up in ARMS:
        paths = [out / f"{down}-{up}-{seed}" / "summary.json" for seed in SEEDS]
        found = [json.loads(path.read_text()) for path in paths if path.exists()]
        if not found:
            continue
        cells = [_spread([100 * run[key] for run in found]) for key in ("worst", "average", "best")]
        sent = [f"{found[0][key] / 2**20:.1f} MiB" for key in ("bytes_down", "bytes_up")]
        print(f"| {down} | {up} | {len(found)} | {' | '.join((*cells, *sent))} |")


def _spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", choices=("bytes", "error", "accuracy"))
    parser.add_argument("out", type=Path, nargs="?", help="where the runs of `accuracy` lie")
    parser.add_argument("--data", type=Path, help="the folder of CIFAR-10")
    parser.add_argument("--recipe", default=RECIPE, help="what the runs of `accuracy` train")
    parser.add_argument("--rounds", type=int, help="of each of them; the recipe's if left out")
    given = parser.parse_args()
    if given.what == "bytes":
        show_bytes()
    elif given.what == "error":
        show_error(given.data)
    else:
        rounds = given.rounds or load_recipe(given.recipe).rounds
        make_runs(given.out, given.recipe, given.data, rounds)
        show_accuracy(given.out)


if __name__ == "__main__":
    main()
