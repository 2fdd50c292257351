"""Built-in sets, a user's own, subsets, the hub, and the real CIFAR-10."""

import os
import socket
import struct
import textwrap
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nefl.data import DATASETS, POLICIES, choose_part, hub, load_dataset
from nefl.data.images import decode_images
from nefl.errors import ConfigError, DataError

CIFAR10 = Path(
    os.environ.get("NEFL_TEST_CIFAR10")
    or Path(__file__).parents[2].parent / "shared" / "data" / "cifar10"
)


def test_digits(tmp_path: Path) -> None:
    digits = load_dataset("digits", cache=tmp_path)
    assert digits.train["image"].shape[1:] == DATASETS["digits"].input_shape
    assert (len(digits.train["label"]), len(digits.test["label"])) == DATASETS["digits"].rows
    assert digits.train["image"].max() == 255
    assert digits.train["image"].min() == 0
    assert np.bincount(digits.test["label"]).tolist() == [36, 37, 35, 37, 36, 36, 36, 36, 35, 36]


def test_digits_split_divides_the_whole_set(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load_dataset("digits", cache=tmp_path)
    together = np.concatenate([digits.train["image"], digits.test["image"]]).reshape(1797, 64)
    levels = np.rint(together / 255 * 16).astype(int)
    original = load_digits().data.astype(int)
    assert sorted(map(tuple, levels.tolist())) == sorted(map(tuple, original.tolist()))


def test_synthetic_repeats_and_is_learnable(tmp_path: Path) -> None:
    options = {"shape": [2, 6, 6], "train": 300, "test": 100, "classes": 5, "seed": 3}
    first = load_dataset("synthetic", cache=tmp_path / "a", options=options)
    second = load_dataset("synthetic", cache=tmp_path / "b", options=options)
    np.testing.assert_array_equal(first.train["image"], second.train["image"])
    other = load_dataset("synthetic", cache=tmp_path / "a", options={**options, "seed": 4})
    assert (other.train["image"] != first.train["image"]).any()
    assert np.bincount(first.train["label"]).tolist() == [60] * 5
    # Nearest class mean, learned from the training part, on the test part.
    flat = first.train["image"].reshape(300, -1).astype(float)
    means = np.stack([flat[first.train["label"] == label].mean(0) for label in range(5)])
    tests = first.test["image"].reshape(100, 1, -1).astype(float)
    guesses = ((tests - means) ** 2).sum(-1).argmin(-1)
    assert (guesses == first.test["label"]).mean() > 0.9


@pytest.mark.parametrize(
    "options",
    [{"size": 3}, {"classes": 1}, {"shape": [3, 3]}, {"train": "many"}, {"noise": -1.0}],
)
def test_wrong_synthetic_options_are_refused(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="synthetic"):
        load_dataset("synthetic", cache=tmp_path, options=options)


def test_the_table_names_policies_that_exist() -> None:
    assert {info.augmentation for info in DATASETS.values()} <= set(POLICIES)
    for info in DATASETS.values():
        assert len(info.class_names) in (0, info.classes)


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown data set 'mnist'; known are digits, cifar10"):
        load_dataset("mnist", cache=tmp_path)
    with pytest.raises(ConfigError, match="digits: unknown option 'scale'"):
        load_dataset("digits", cache=tmp_path, options={"scale": 2})
    with pytest.raises(ConfigError, match="cifar10: option partial is 'no', expected true or"):
        load_dataset("cifar10", cache=tmp_path, options={"partial": "no"})
    with pytest.raises(ConfigError, match="reads no files"):
        load_dataset("digits", root=tmp_path, cache=tmp_path)
    with pytest.raises(ConfigError, match=r"needs a root: a .npz file"):
        load_dataset("arrays", cache=tmp_path)


MODULE = """
import numpy as np
calls = []
def make(rows=4, value=1):
    calls.append(rows)
    x = np.full((rows, 5, 4, 3), value, np.uint8)
    y = np.arange(rows) % 2
    return {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "class_names": ["no", "yes"]}
def wrong():
    return 3
def floats():
    return {**make(), "x_test": np.zeros((4, 5, 4, 3))}
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "nefl_own_test_module.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    return "nefl_own_test_module"


def test_own_function(tmp_path: Path, own_module: str) -> None:
    found = load_dataset(f"{own_module}:make", cache=tmp_path / "c", options={"rows": 6})
    assert found.train["image"].shape == (6, 3, 5, 4)  # the channels came last
    assert tuple(found.facts["class_names"]) == ("no", "yes")
    changed = load_dataset(
        f"{own_module}:make", cache=tmp_path / "c", options={"rows": 6, "value": 2}
    )
    assert changed.train["image"].max() == 2


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        ("absent", "cannot be imported"),
        ("wrong", "returned int, expected a dict with x_train"),
        ("floats", "x_test: images are float64, expected uint8"),
    ],
)
def test_wrong_own_function(tmp_path: Path, own_module: str, function: str, complaint: str) -> None:
    with pytest.raises((ConfigError, DataError), match=complaint):
        load_dataset(f"{own_module}:{function}", cache=tmp_path / "c")


def test_own_arrays(tmp_path: Path) -> None:
    grey = np.arange(4 * 5 * 6, dtype=np.uint8).reshape(4, 5, 6)
    labels = np.array([0, 1, 2, 0])
    np.savez(tmp_path / "a.npz", x_train=grey, y_train=labels, x_test=grey, y_test=labels)
    found = load_dataset("arrays", root=tmp_path / "a.npz", cache=tmp_path / "c")
    assert found.train["image"].shape[1:] == (1, 5, 6)
    assert tuple(found.facts["class_names"]) == ("0", "1", "2")
    np.testing.assert_array_equal(found.test["image"][:, 0], grey)


def test_own_arrays_are_never_unpickled(tmp_path: Path) -> None:
    grey = np.zeros((4, 5, 6), np.uint8)
    objects = np.array([0, 1, 2, None], dtype=object)
    np.savez(tmp_path / "a.npz", x_train=grey, y_train=objects, x_test=grey, y_test=objects)
    with pytest.raises(DataError, match=r"a.npz: not a complete .npz file of plain arrays"):
        load_dataset("arrays", root=tmp_path / "a.npz", cache=tmp_path / "c")


def test_wrong_own_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    grey, labels = np.zeros((4, 5, 6), np.uint8), np.array([0, 1, 1, 0])
    np.savez(path, x_train=grey, y_train=labels, x_test=grey)
    with pytest.raises(DataError, match="no array y_test"):
        load_dataset("arrays", root=path, cache=tmp_path / "c")
    np.savez(path, x_train=grey, y_train=labels - 1, x_test=grey, y_test=labels)
    with pytest.raises(DataError, match="y_train: row 0 has label -1"):
        load_dataset("arrays", root=path, cache=tmp_path / "c")
    np.savez(path, x_train=grey, y_train=labels, x_test=grey[:, :4], y_test=labels)
    with pytest.raises(DataError, match=r"training images are \(1, 5, 6\), test images"):
        load_dataset("arrays", root=path, cache=tmp_path / "c")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"a.npz: not a complete"):
        load_dataset("arrays", root=path, cache=tmp_path / "c")


def test_subset_is_stratified_and_seeded(tmp_path: Path) -> None:
    digits = load_dataset("digits", cache=tmp_path)
    labels = np.asarray(digits.train["label"])

    def choose(count: int | None, seed: int) -> np.ndarray:
        return choose_part(len(labels), labels, count, seed, 0, "digits train")

    chosen = choose(200, 1)
    assert len(chosen) == len(set(chosen.tolist())) == 200
    assert (np.diff(chosen) > 0).all()
    shares = np.bincount(labels[chosen]) / 200
    whole = np.bincount(digits.train["label"]) / len(digits.train["label"])
    assert np.abs(shares - whole).max() < 1 / 200
    np.testing.assert_array_equal(choose(200, 1), chosen)
    assert (choose(200, 2) != chosen).any()
    assert len(choose(None, 1)) == len(labels)
    with pytest.raises(ConfigError, match="digits train: a subset of 1438 out of 1437"):
        choose(1438, 1)


@pytest.mark.parametrize("root", ["hub", None])
def test_an_unreachable_hub_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str | None
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"svhn: ufldl.*train_32x32.mat.*give that folder as root"):
        load_dataset("svhn", root=root, cache=tmp_path)


@pytest.mark.timeout(60)
def test_a_silent_hub_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts, and never answers
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(hub, "HUB_TIMEOUT", 1.0)
        with pytest.raises(DataError, match="could not be fetched"):
            load_dataset("svhn", cache=tmp_path)


def test_what_the_hub_gave_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.zeros((10, 3073), np.uint8)
    rows[:, 0] = np.arange(10)
    for name in ("test_batch.bin", *(f"data_batch_{n}.bin" for n in range(1, 6))):
        rows.tofile(tmp_path / name)
    fetched: list[str] = []

    def fetch(name: str, _: object) -> Path:
        fetched.append(name)
        return tmp_path

    monkeypatch.setattr(hub, "fetch", fetch)
    for _ in range(2):
        load_dataset("cifar10", root="hub", cache=tmp_path / "c", options={"partial": True})
    assert fetched == ["cifar10"]


@pytest.mark.long
@pytest.mark.skipif(not CIFAR10.is_dir(), reason="no real CIFAR-10: set NEFL_TEST_CIFAR10")
def test_real_cifar10(tmp_path: Path) -> None:
    real = load_dataset("cifar10", root=CIFAR10, cache=tmp_path)
    assert real.train["image"].shape == (50_000, 3, 32, 32)
    assert np.bincount(real.train["label"]).tolist() == [5000] * 10
    assert np.bincount(real.test["label"]).tolist() == [1000] * 10
    assert [f"{value:.4f}" for value in real.facts["mean"]] == ["0.4914", "0.4822", "0.4465"]
    assert [f"{value:.4f}" for value in real.facts["std"]] == ["0.2470", "0.2435", "0.2616"]
    # The official order begins with a frog and two trucks.
    assert [tuple(real.facts["class_names"])[label] for label in real.train["label"][:3]] == [
        "frog",
        "truck",
        "truck",
    ]


def test_arrays_that_unpack_to_gigabytes_are_refused(tmp_path: Path) -> None:
    good: dict[str, Any] = {"x_train": np.zeros((4, 8, 8), np.uint8), "y_train": np.arange(4)}
    good |= {"x_test": good["x_train"], "y_test": good["y_train"]}
    np.savez_compressed(
        tmp_path / "b.npz", **good | {"x_train": np.zeros((80, 2**10, 2**10), "u1")}
    )
    with pytest.raises(DataError, match=r"b\.npz: \d+ bytes would unpack to 8"):
        load_dataset("arrays", root=tmp_path / "b.npz", cache=tmp_path / "cache")
    np.savez(tmp_path / "l.npz", **good | {"y_train": np.array([0, 1, 2, 2**62])})
    with pytest.raises(DataError, match="has label 4611686018427387904, expected less than 100000"):
        load_dataset("arrays", root=tmp_path / "l.npz", cache=tmp_path / "cache")


def test_huge_images_of_a_folder_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    header = b"IHDR" + struct.pack(">IIBBBBB", 8_000, 8_000, 8, 2, 0, 0, 0)
    picture = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header
    picture += struct.pack(">I", zlib.crc32(header)) + struct.pack(">I", 0) + b"IDAT"
    with pytest.raises(DataError, match="x: image of 8000x8000 pixels, at most 40 million"):
        decode_images([("x", picture)], 1, None)
