"""Adapters of several ranks on a frozen base: every averaging rule, three seeds, one table.

    python -m benchmarks.adapters base  -o FOLDER   # pre-train and export the base
    python -m benchmarks.adapters runs  -o FOLDER   # fine-tune; finished runs are left alone
    python -m benchmarks.adapters table -o FOLDER   # the table of docs/language-models.md

All settings are those of the recipes stdlib-base and stdlib-lora; only the method and the seed
differ. Each command goes on where it was stopped.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nefl
from nefl.config.reading import config_from
from nefl.engines.serial import SerialEngine
from nefl.nesting.adapters import adapters_of
from nefl.running.assembly import assemble
from nefl.server.aggregate import Weighting

SEEDS = (0, 1, 2)
RULES = {
    "fedavg-small": "rank 2 for all",
    "fedavg-capable": "rank 16, those able",
    "fedavg": "rank 16 for all (FedIT)",
    "lora": "by coverage",
    "lora-padded": "zero-padded (HetLoRA)",
    "lora-ffa": "A frozen (FFA-LoRA)",
    "lora-products": "products, SVD (FlexLoRA)",
}
"""Methods, as the table names them."""

WATCHED = ("lora", "fedavg")
"""Those in which the products of means are held against the mean of products."""

GAP = "gap.json"


class Watched(nefl.Aggregate):
    """The mean by coverage; measures how far mean(B)·mean(A) is from the mean of B·A."""

    def __init__(self, state: nefl.ServerState, family: nefl.Family, weighting: Weighting) -> None:
        super().__init__(state, family, weighting=weighting)
        self._pairs = adapters_of(family)
        self._products: dict[str, Tensor] = {}
        self._count = 0

    def add(self, update: nefl.ClientUpdate) -> None:
        """Count an update, and its products."""
        super().add(update)
        self._count += 1
        for pair in self._pairs:
            product = update.trained[pair.b].double() @ update.trained[pair.a].double()
            known = self._products.get(pair.a)
            self._products[pair.a] = product if known is None else known + product

    def finish(self) -> nefl.ServerState:
        """Return the state after the round; note the gap."""
        after = super().finish()
        apart = size = 0.0
        for pair in self._pairs:
            exact = self._products[pair.a] / self._count
            made = after.shared[pair.b].double() @ after.shared[pair.a].double()
            apart += float((made - exact).square().sum())
            size += float(exact.square().sum())
        GAPS.append((apart / size) ** 0.5)
        return after


GAPS: list[float] = []
"""One number a round of the run at hand."""


def settings(folder: Path, method: str, seed: int) -> dict[str, Any]:
    values = nefl.recipe_values("stdlib-lora")
    values["seed"] = seed
    values["model"]["method"] = method
    values["model"]["options"] |= {"base": str(folder / "base"), "seed": seed}
    values["engine"] = {"name": "serial", "device": "cpu"}
    if method in WATCHED:
        values["server"]["average"] = "benchmarks.adapters:Watched"
    return values


def make_base(folder: Path) -> None:
    values = nefl.recipe_values("stdlib-base") | {"engine": {"name": "serial", "device": "cpu"}}
    run = folder / "base-run"
    done = nefl.resume(run) if (run / "config.json").exists() else nefl.train(values, run)
    print(f"base: perplexity {done.summary['perplexity']} on packages it knows")
    if not (folder / "base").exists():
        nefl.export_submodel(run, folder / "base", submodel=1, format_name="huggingface")


def fine_tune(folder: Path) -> None:
    untouched = folder / "untouched.json"
    if not untouched.exists():
        setting = assemble(config_from(settings(folder, "fedavg-small", 0)))
        found = SerialEngine(setting.site(), setting.family).evaluate(setting.initial_state(), [1])
        untouched.write_text(json.dumps(found[0].values["perplexity"]))
    for seed in SEEDS:
        for method in RULES:
            run = folder / f"{method}-{seed}"
            if (run / "summary.json").exists():
                continue
            if (run / "config.json").exists():
                done = nefl.resume(run)
            else:
                done = nefl.train(settings(folder, method, seed), run)
            print(method, seed, done.summary["perplexity"], flush=True)
            if GAPS:
                (run / GAP).write_text(json.dumps(GAPS))
                GAPS.clear()


def show(folder: Path) -> None:
    print(f"no tuning: {json.loads((folder / 'untouched.json').read_text()):.3f}")
    print("| rule | rank 2 | rank 4 | rank 8 | rank 16 | bytes up |")
    for method, name in RULES.items():
        runs = [json.loads((folder / f"{method}-{s}" / "summary.json").read_text()) for s in SEEDS]
        columns = list(zip(*(run["perplexity"] for run in runs), strict=True))
        cells = [f"{statistics.mean(c):.3f} ± {statistics.stdev(c):.3f}" for c in columns]
        if len(cells) == 1:
            cells = [*cells, "", "", ""] if method == "fedavg-small" else ["", "", "", *cells]
        sent = statistics.mean(run["bytes_up"] for run in runs) / 2**20
        print(f"| {name} | {' | '.join(cells)} | {sent:.1f} MiB |")
    for method in WATCHED:
        gaps = [json.loads((folder / f"{method}-{s}" / GAP).read_text()) for s in SEEDS]
        first, last = ([gap[place] for gap in gaps] for place in (0, -1))
        print(
            f"{method}: |mean(B)·mean(A) − mean(B·A)| / |mean(B·A)| is "
            f"{statistics.mean(first):.2f} in the first round, {statistics.mean(last):.2f} in the "
            "last"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["base", "runs", "table"])
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    {"base": make_base, "runs": fine_tune, "table": show}[given.what](given.out)


if __name__ == "__main__":
    # As workers and a resumed run find it: by name, not as the program that was started.
    from benchmarks import adapters

    adapters.main()
