"""Switching time and size of elastic files, and what views of the weights cost.

First the submodels are checked against the state they were cut from, then timed.

    python benchmarks/elastic.py
"""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

import nefl
from nefl.artifacts.card import Card, SubmodelCard
from nefl.elastic.file import TrainedFamily, save_family
from nefl.elastic.model import measure_latency
from nefl.measured import MeasuredBy
from nefl.nesting.inference import inference_memory
from nefl.nesting.profile import count_macs, count_params
from nefl.nesting.signature import Signature

SIGNATURE = Signature((3, 32, 32), 10)
SWITCHES = 20_000


def make_file(model: str, method: str, path: Path) -> TrainedFamily:
    family = nefl.make_family(model, method)
    submodels = tuple(
        SubmodelCard(
            k,
            spec,
            count_params(family.meta_module(k)),
            count_macs(family.meta_module(k), SIGNATURE)[1],
            inference_memory(family.meta_module(k), SIGNATURE),
        )
        for k, spec in enumerate(family.specs, start=1)
    )
    metrics = (MeasuredBy("accuracy", "up", percent=True),)
    card = Card(model, method, "none", 0, "none", SIGNATURE, metrics, submodels)
    trained = TrainedFamily(card, family, family.initial_state(0))
    save_family(path, trained)
    return trained


def check(trained: TrainedFamily, loaded: TrainedFamily) -> None:
    inputs = SIGNATURE.noise(2)
    for k in range(1, len(trained) + 1):
        plain = trained.family.build(trained.family.specs[k - 1]).eval()
        plain.load_state_dict(nefl.extract(trained.state, trained.family, k))
        with torch.no_grad():
            for views in (None, True):
                got = loaded.model(k, views=views)(inputs)
                torch.testing.assert_close(got, plain(inputs), rtol=1e-4, atol=1e-4)


def bytes_of(model: torch.nn.Module) -> int:
    found = [tensor.untyped_storage() for tensor in model.state_dict().values()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in found}.values())


def sizes_of(trained: TrainedFamily, loaded: TrainedFamily, file: int) -> list[str]:
    family = trained.family
    shared = sum(info.nbytes for info in family.global_layout.values())
    own = sum(t.nbytes for mine in trained.state.per_submodel for t in mine.values())
    numbers = range(1, len(family) + 1)
    separate = sum(info.nbytes for k in numbers for info in family.layout(k).values())
    in_memory = [bytes_of(nefl.ElasticModel(loaded, views=views)) for views in (None, True)]
    return [f"{n / 1e6:.2f} MB" for n in (shared, own, file, separate, *in_memory)]


def times_of(elastic: nefl.ElasticModel) -> list[str]:
    budgets = [nefl.Budget(macs=cost.macs) for cost in elastic.costs]

    def median_of(act: Callable[[int], object]) -> str:
        times = []
        for turn in range(SWITCHES):
            started = perf_counter()
            act(turn % len(budgets))
            times.append(perf_counter() - started)
        return f"{1e6 * median(times):.2f} us"

    return [
        median_of(lambda place: elastic.switch(1 + place)),
        median_of(lambda place: elastic.select(budgets[place])),
    ]


def latency(model: torch.nn.Module) -> float:
    inputs = SIGNATURE.example(1)
    return 1e3 * measure_latency(lambda: model(inputs), 40)


def main() -> None:
    torch.set_num_threads(1)
    headings = ("global", "own", "file", "separate", "loaded", "as views", "switch", "select")
    print(" " * 18 + "".join(f"{heading:>10}" for heading in headings))
    for name, method in (("resnet20", "nefl-wd"), ("resnet56", "nefl-d"), ("resnet18", "nefl-wd")):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "elastic.safetensors"
            trained = make_file(name, method, path)
            size = path.stat().st_size
            loaded = nefl.load(path)
        check(trained, loaded)
        columns = sizes_of(trained, loaded, size) + times_of(nefl.ElasticModel(loaded))
        print(f"{name + ' ' + method:18}" + "".join(f"{column:>10}" for column in columns))
        for k in range(1, len(trained) + 1):
            mixed, viewed = latency(loaded.model(k)), latency(loaded.model(k, views=True))
            print(f"  submodel {k}: {mixed:.2f} ms, as views only {viewed:.2f} ms")


if __name__ == "__main__":
    main()
