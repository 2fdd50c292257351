"""A sound file of every kind that nefl reads, to be spoilt."""

import io
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

import nefl
from nefl.data.partition import Partition
from nefl.export.formats import FORMATS

SETTINGS = {
    "rounds": 1,
    "model": {"name": "resnet8", "method": "nefl-wd", "ratios": [0.5, 1.0]},
    "data": {"name": "digits"},
    "clients": {"count": 5, "per_round": 2},
    "local": {"epochs": 1, "batch_size": 64},
    "engine": {"name": "serial", "device": "cpu"},
}
RUN_FILES = ("config.json", "metrics.jsonl", "facts.json", "identity.json")


def make_samples(folder: Path, formats: tuple[str, ...] = tuple(FORMATS)) -> None:
    """Fill a folder with a folder for every kind of file."""
    run = nefl.train(SETTINGS, folder / "run").path
    for name in formats:
        out = _place(folder, name) / f"file{FORMATS[name].suffix}"
        nefl.export_submodel(run, out, submodel=1, format_name=name, examples=20, measure=False)
    elastic = _place(folder, "elastic") / "file.safetensors"
    nefl.export_family(run, elastic, examples=20)
    shutil.copy(next((run / "checkpoints").glob("round-*")), _place(folder, "checkpoint") / "file")
    for name in RUN_FILES:
        shutil.copytree(run, folder / name)
    _data(folder)
    _pictures(folder)
    _texts(folder)
    full = {n: t.clone() for n, t in nefl.load(elastic).model(2, views=False).state_dict().items()}
    save_file(full, _place(folder, "weights.safetensors") / "file.safetensors")
    torch.save(full, _place(folder, "weights.pth") / "file.pth")


def _place(folder: Path, name: str) -> Path:
    (folder / name).mkdir(exist_ok=True)
    return folder / name


def _data(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from scipy.io import savemat

    draw = np.random.default_rng(0)
    small = draw.integers(0, 256, (20, 8, 8), np.uint8)
    labels = np.arange(20) % 10
    arrays = {"x_train": small, "y_train": labels, "x_test": small, "y_test": labels}
    np.savez_compressed(_place(folder, "npz") / "file.npz", allow_pickle=True, **arrays)
    pixels = draw.integers(0, 256, (20, 32, 32, 3), np.uint8)
    rows = [{"bytes": encode(row, "PNG"), "path": None} for row in pixels]
    table = pa.table({"img": rows, "label": labels})
    pq.write_table(table, _place(folder, "parquet") / "file.parquet")
    content = {b"data": pixels.reshape(20, -1), b"labels": labels.tolist()}
    (_place(folder, "CIFAR batch") / "file").write_bytes(pickle.dumps(content, protocol=2))
    matlab = {"X": pixels.transpose(1, 2, 3, 0), "y": labels[:, None] + 1}
    savemat(_place(folder, "SVHN .mat") / "file.mat", matlab)
    header = bytes((0, 0, 8, 3)) + b"".join(n.to_bytes(4, "big") for n in small.shape)
    (_place(folder, "IDX") / "file").write_bytes(header + small.tobytes())


def encode(pixels: np.ndarray, form: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form)
    return out.getvalue()


def _pictures(folder: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (32, 32, 3), np.uint8)
    for form in ("PNG", "JPEG", "WEBP", "BMP"):
        (_place(folder, form) / "file").write_bytes(encode(pixels, form))


def _texts(folder: Path) -> None:
    recipe = _place(folder, "recipe") / "file.toml"
    recipe.write_text(
        'rounds = 3\nseed = 1\n[model]\nname = "resnet8"\nmethod = "nefl-wd"\n'
        'ratios = [0.5, 1.0]\n[data]\nname = "digits"\n[clients]\ncount = 5\nper_round = 2\n'
        "[local]\nepochs = 1\nlearning_rate = 0.1\n"
    )
    registry = _place(folder, "registry") / "file.toml"
    registry.write_text(
        'others = "refuse"\n[default]\ntier = 1\n[nodes.a]\nclient = 0\nlargest = 2\n'
        "memory = 1e9\n[nodes.b]\nclient = 1\nbandwidth = 1000000\n"
    )
    lists = [[0, 1, 2], [3, 4], [5, 6, 7], [8], [9, 10]]
    (_place(folder, "partition list") / "file.json").write_text(json.dumps(lists))
    partition = Partition(np.arange(11, dtype=np.int64), np.array([0, 3, 5, 8, 9, 11], np.int64))
    partition.save(_place(folder, "partition") / "file.safetensors")
