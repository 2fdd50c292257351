"""Every reader of files with spoilt and hostile ones: read, or one of nefl's errors, and no more.

Half of the files are spoilt blindly; where a format has checksums or a structure, the other half is
changed knowingly, with checksums that hold. Each is tried in a fork with bounds on time and memory.
"""

import importlib
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.campaign import reseal
from benchmarks.campaign.mutations import BYTES, TEXT, Mutation, change_json, change_line
from benchmarks.campaign.samples import make_samples
from benchmarks.campaign.watched import Outcome, try_all

BATCHES = 40
FILES = 20
"""Files of each kind in a batch."""

MOST_MEMORY = 512 * 2**20
"""Bytes by which reading one of these small files may swell a process."""


RUNTIMES = (
    "executorch.runtime", "onnx", "onnxruntime", "torch.export.pt2_archive._package",
    "pyarrow.parquet", "scipy.io", "PIL.PngImagePlugin", "PIL.WebPImagePlugin",
)  # fmt: skip
"""What readers import when they are first called: once here, not in every fork."""


@dataclass(frozen=True)
class Reader:
    """A kind of file, and what reads it.

    Attributes:
        file: where it lies in the folder of samples.
        read: reads it from there.
        blind: ways to spoil its bytes.
        knowing: ways to change what it says, with right checksums.
        promised: False where a native runtime has the word: what comes of it is only counted.
    """

    file: str
    read: Callable[[Path], object]
    blind: Sequence[Mutation] = BYTES
    knowing: Sequence[Mutation] = ()
    promised: bool = True


def readers(folder: Path) -> dict[str, Reader]:
    """All readers; what they need of the samples is loaded here, before any fork."""
    import nefl
    from nefl.artifacts.checkpoint import load_state
    from nefl.artifacts.identity import check_unchanged
    from nefl.artifacts.notes import stored_config
    from nefl.artifacts.older import ACCURACY
    from nefl.artifacts.summary import averages, summarise
    from nefl.asking.pictures import decode_picture
    from nefl.config.reading import config_from, read_config
    from nefl.data import cifar, idx, images, own, parquet, svhn
    from nefl.data.arrays import check_decoded
    from nefl.data.catalog import DATASETS
    from nefl.data.partition import Partition, partition_clients
    from nefl.engines.flower.server.registry import read_registry
    from nefl.export.formats import open_model
    from nefl.models.pretrained import fit_weights, read_weights
    from nefl.report.reading.runs import read_run
    from nefl.serving.predictor import Predictor

    for module in RUNTIMES:
        importlib.import_module(module)
    trained = nefl.load(folder / "elastic" / "file.safetensors")
    family = trained.family
    run_state = load_state(folder / "checkpoint" / "file", family)

    def as_run(path: Path) -> None:
        read_run(path.parent)
        config_of = stored_config(path.parent)
        averages(path.parent, config_of.rounds, ACCURACY.name)
        summarise(path.parent, family, run_state, ACCURACY)
        check_unchanged(path.parent, {"model": family.fingerprint})

    def picture(path: Path) -> None:
        decode_picture(path.read_bytes(), str(path), (1, 8, 8))
        images.decode_images([(str(path), path.read_bytes())], 1, None)

    def weights(path: Path) -> None:
        fit_weights(read_weights(path), family, str(path))

    json_ways, pictures = (change_json,), {form: (form,) for form in ("JPEG", "WEBP", "BMP")}
    exported: dict[str, Reader] = {
        "safetensors": Reader("safetensors/file.safetensors", open_model, BYTES, (reseal.tensors,)),
        "ONNX": Reader("onnx/file.onnx", open_model, BYTES, (reseal.onnx_card,)),
        "ExecuTorch": Reader("executorch/file.pte", open_model, BYTES, (reseal.pte_card,)),
        "torch.export": Reader("torch-export/file.pt2", open_model, BYTES, (reseal.archive,)),
        "ONNX, its graph": Reader("onnx/file.onnx", open_model, (), (reseal.onnx_graph,), False),
        "ExecuTorch, its program": Reader(
            "executorch/file.pte", open_model, (), (reseal.pte_program,), False
        ),
    }
    found = {
        "checkpoint": Reader(
            "checkpoint/file", lambda p: load_state(p, family), BYTES, (reseal.tensors,)
        ),
        "elastic": Reader("elastic/file.safetensors", Predictor, BYTES, (reseal.tensors,)),
        **exported,
        "npz": Reader(
            "npz/file.npz",
            lambda p: check_decoded(own.read_npz(p), str(p)),
            BYTES,
            (*[reseal.arrays] * 9, reseal.array_bomb),
        ),
        "parquet": Reader(
            "parquet/file.parquet", lambda p: parquet.read_parquet(p, DATASETS["cifar10"])
        ),
        "CIFAR batch": Reader(
            "CIFAR batch/file", lambda p: cifar.read_batch(p, DATASETS["cifar10"])
        ),
        "SVHN .mat": Reader("SVHN .mat/file.mat", lambda p: svhn.read_mat(p, DATASETS["svhn"])),
        "IDX": Reader("IDX/file", lambda p: idx.read_idx(p, 3)),
        "PNG": Reader("PNG/file", picture, BYTES, (reseal.png,)),
        **{form: Reader(f"{form}/file", picture) for form in pictures},
        "recipe": Reader("recipe/file.toml", lambda p: config_from(read_config(p), str(p)), TEXT),
        "registry": Reader("registry/file.toml", lambda p: read_registry(str(p), 5, 2, 2), TEXT),
        "partition": Reader("partition/file.safetensors", Partition.load),
        "partition list": Reader(
            "partition list/file.json",
            lambda p: partition_clients(torch.zeros(11).long().numpy(), 5, "list", path=p),
            TEXT,
            json_ways,
        ),
        "weights .safetensors": Reader("weights.safetensors/file.safetensors", weights),
        "weights .pth": Reader("weights.pth/file.pth", weights, BYTES, (reseal.pth,)),
        "config.json": Reader("config.json/config.json", as_run, TEXT, json_ways),
        "log": Reader("metrics.jsonl/metrics.jsonl", as_run, TEXT, (change_line,)),
        "facts.json": Reader("facts.json/facts.json", as_run, TEXT, json_ways),
        "identity.json": Reader("identity.json/identity.json", as_run, TEXT, json_ways),
    }
    return {name: reader for name, reader in found.items() if (folder / reader.file).exists()}


@cache
def _prepared() -> tuple[Path, dict[str, Reader]]:
    """Make the samples in a process of their own: runtimes must start no threads in this one."""
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="nefl-readers-"))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            make_samples(folder)
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("the samples could not be made")
    return folder, readers(folder)


def spoil(reader: Reader, whole: bytes, seed: str) -> bytes:
    """Return a spoilt file; the seed decides how."""
    draw = random.Random(seed)  # noqa: S311 -- to be repeated, not to be secret
    knowingly = reader.knowing and (not reader.blind or draw.random() < 0.5)
    return draw.choice(reader.knowing if knowingly else reader.blind)(whole, draw)


def try_reader(
    folder: Path, name: str, reader: Reader, batch: int, files: int
) -> tuple[list[Outcome], list[str]]:
    """Try some spoilt files of a kind; return what came of them, and promises that were broken."""
    path = folder / reader.file
    whole = path.read_bytes()

    spoilt = [spoil(reader, whole, f"{name} {batch} {number}") for number in range(files)]

    def attempt(number: int) -> object:
        path.write_bytes(spoilt[number])
        return reader.read(path)

    outcomes = try_all(attempt, files)
    path.write_bytes(whole)
    broken = [
        f"{name} {batch} {number}: {outcome.kind} {outcome.detail} {outcome.growth >> 20} MiB"
        for number, outcome in enumerate(outcomes)
        if reader.promised
        and (outcome.kind not in ("read", "refused") or outcome.growth > MOST_MEMORY)
    ]
    return outcomes, broken


def run_batch(number: int) -> dict[str, Any]:
    """Try some files of every kind.

    Raises:
        AssertionError: naming the files that broke the promise; `spoil` makes them again.
    """
    folder, known = _prepared()
    found: dict[str, Any] = {}
    wrong: list[str] = []
    for name, reader in known.items():
        outcomes, broken = try_reader(folder, name, reader, number, FILES)
        found[name] = {
            "kinds": Counter(outcome.kind for outcome in outcomes),
            "seconds": max(outcome.seconds for outcome in outcomes),
            "growth": max(outcome.growth for outcome in outcomes),
        }
        wrong += broken
    if wrong:
        raise AssertionError("\n".join(wrong))
    return {"readers": found}


def table(entries: Sequence[Mapping[str, Any]]) -> str:
    """Sum up by reader."""
    kinds = ("read", "refused", "raised", "crashed", "hung")
    lines = [
        "| file | files | read | refused | raised | crashed | hung | slowest | most memory |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    total: Counter[str] = Counter()
    for name in entries[0]["readers"]:
        parts = [entry["readers"][name] for entry in entries]
        counts: Counter[str] = sum((Counter(part["kinds"]) for part in parts), Counter())
        total += counts
        slowest = max(part["seconds"] for part in parts)
        memory = max(part["growth"] for part in parts) / 2**20
        numbers = " | ".join(f"{counts[kind]:,}" for kind in kinds)
        lines.append(
            f"| {name} | {counts.total():,} | {numbers} | {slowest:.1f} s | {memory:.0f} MiB |"
        )
    numbers = " | ".join(f"{total[kind]:,}" for kind in kinds)
    lines.append(f"| all | {total.total():,} | {numbers} | | |")
    return "\n".join(lines)
