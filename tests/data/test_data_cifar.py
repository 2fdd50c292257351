"""CIFAR's official batches: pickled by Python 2, and binary."""

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from nefl.data import DATASETS, load_dataset
from nefl.errors import DataError

Bytes = npt.NDArray[np.uint8]
PARTIAL = {"partial": True}


def old_str(text: bytes) -> bytes:
    """A Python 2 str as pickle protocol 2 writes it."""
    if len(text) < 256:
        return b"U" + bytes([len(text)]) + text
    return b"T" + struct.pack("<i", len(text)) + text


def old_int(number: int) -> bytes:
    return b"J" + struct.pack("<i", number)


def old_array(data: Bytes) -> bytes:
    """A uint8 array as NumPy under Python 2 pickled it."""
    dtype = b"cnumpy\ndtype\n" + old_str(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + old_str(b"|") + b"NNN" + old_int(-1) + old_int(-1) + b"K\x00tb"
    shape = b"".join(old_int(n) for n in data.shape) + b"\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85"
    array += old_str(b"b") + b"\x87R"
    return array + b"(K\x01" + shape + dtype + b"\x89" + old_str(data.tobytes()) + b"tb"


def old_pickle(data: Bytes, labels: list[int], key: bytes = b"labels") -> bytes:
    numbers = b"](" + b"".join(old_int(n) for n in labels) + b"e"
    entries = old_str(b"batch_label") + old_str(b"testing batch 1 of 1")
    entries += old_str(b"data") + old_array(data) + old_str(key) + numbers
    return b"\x80\x02}(" + entries + b"u."


def some_rows(rows: int, classes: int, seed: int = 0) -> tuple[Bytes, list[int]]:
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows, 3072), np.uint8)
    return data, [n % classes for n in range(rows)]


def write_cifar10(folder: Path, rows: int = 20) -> Bytes:
    """Six pickled batches; returns all training rows."""
    folder.mkdir(parents=True)
    names = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    batches = [some_rows(rows, 10, seed) for seed in range(6)]
    for name, (data, labels) in zip(names, batches, strict=True):
        (folder / name).write_bytes(old_pickle(data, labels))
    return np.concatenate([data for data, _ in batches[:5]])


@pytest.mark.filterwarnings("ignore:numpy.core:DeprecationWarning")
def test_the_pickles_written_here_are_what_python_2_wrote() -> None:
    data, labels = some_rows(3, 10)
    content = pickle.loads(old_pickle(data, labels), encoding="bytes")  # noqa: S301  # our own
    np.testing.assert_array_equal(content[b"data"], data)
    assert content[b"labels"] == labels


def test_reads_cifar10_pickles(tmp_path: Path) -> None:
    rows = write_cifar10(tmp_path / "d" / "cifar-10-batches-py")
    found = load_dataset("cifar10", root=tmp_path / "d", cache=tmp_path / "c", options=PARTIAL)
    assert found.train["image"].shape == (100, 3, 32, 32)
    # A row is the red plane, then green, then blue.
    np.testing.assert_array_equal(found.train["image"].reshape(100, -1), rows)
    assert found.train["label"].tolist()[:12] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert found.facts["class_names"][9] == "truck"


def test_reads_what_python_3_pickles_in_the_old_protocol(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "d")
    data, labels = some_rows(20, 10, seed=9)
    content = pickle.dumps({b"data": data, b"labels": labels}, protocol=2)
    (tmp_path / "d" / "test_batch").write_bytes(content)
    found = load_dataset("cifar10", root=tmp_path / "d", cache=tmp_path / "c", options=PARTIAL)
    np.testing.assert_array_equal(found.test["image"].reshape(20, -1), data)


def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    for part in ("train", "test"):
        data, labels = some_rows(200, 100)
        (tmp_path / part).write_bytes(old_pickle(data, labels, b"fine_labels"))
    found = load_dataset("cifar100", root=tmp_path, cache=tmp_path / "c", options=PARTIAL)
    assert found.train["label"].max() == 99
    assert len(found.facts["class_names"]) == 100
    assert found.facts["class_names"][0] == "apple"


def test_reads_binary_batches(tmp_path: Path) -> None:
    data, labels = some_rows(20, 10)
    rows = np.concatenate([np.array(labels, np.uint8)[:, None], data], axis=1)
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        rows.tofile(tmp_path / f"{name}.bin")
    found = load_dataset("cifar10", root=tmp_path, cache=tmp_path / "c", options=PARTIAL)
    np.testing.assert_array_equal(found.test["image"].reshape(20, -1), data)
    assert found.test["label"].tolist() == labels


def test_binary_cifar100_skips_the_coarse_label(tmp_path: Path) -> None:
    data, labels = some_rows(100, 100)
    fine = np.array(labels, np.uint8)[:, None]
    rows = np.concatenate([fine // 5, fine, data], axis=1)
    for name in ("train.bin", "test.bin"):
        rows.tofile(tmp_path / name)
    found = load_dataset("cifar100", root=tmp_path, cache=tmp_path / "c", options=PARTIAL)
    assert found.train["label"].tolist() == labels
    np.testing.assert_array_equal(found.train["image"].reshape(100, -1), data)


class Malice:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (pickle.dumps(Malice()), "posix.system"),
        (b"cbuiltins\neval\n(U\x031+1tR.", "__builtin__.eval|builtins.eval"),
        (b"cnumpy\nndarray.tofile\n.", "numpy.ndarray.tofile"),
        (b"cnumpy.core.multiarray\nscalar\n.", "numpy.core.multiarray.scalar"),
    ],
)
def test_a_pickle_that_asks_for_more_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cifar10(tmp_path / "d")
    (tmp_path / "d" / "data_batch_3").write_bytes(content)
    with pytest.raises(DataError, match=f"data_batch_3: the pickle asks for ({named})"):
        load_dataset("cifar10", root=tmp_path / "d", cache=tmp_path / "c", options=PARTIAL)
    assert not (tmp_path / "executed").exists()


def test_a_codec_other_than_latin1_is_refused(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "d")
    bomb = b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00bz2tR."
    (tmp_path / "d" / "test_batch").write_bytes(bomb)
    with pytest.raises(DataError, match=r"test_batch: not a complete CIFAR batch.*bz2"):
        load_dataset("cifar10", root=tmp_path / "d", cache=tmp_path / "c", options=PARTIAL)


def load_with(tmp_path: Path, name: str, content: bytes) -> None:
    write_cifar10(tmp_path / "d")
    (tmp_path / "d" / name).write_bytes(content)
    load_dataset("cifar10", root=tmp_path / "d", cache=tmp_path / "c", options=PARTIAL)


def test_a_truncated_pickle_is_refused(tmp_path: Path) -> None:
    whole = old_pickle(*some_rows(20, 10))
    with pytest.raises(DataError, match="data_batch_2: not a complete CIFAR batch"):
        load_with(tmp_path, "data_batch_2", whole[: len(whole) // 2])


def test_a_label_outside_the_classes_is_refused(tmp_path: Path) -> None:
    data, labels = some_rows(20, 10)
    labels[7] = 10
    with pytest.raises(DataError, match="data_batch_2: row 7 has label 10, expected 0 to 9"):
        load_with(tmp_path, "data_batch_2", old_pickle(data, labels))


def test_fewer_labels_than_images_are_refused(tmp_path: Path) -> None:
    data, labels = some_rows(20, 10)
    with pytest.raises(DataError, match="data_batch_2: 20 images but 19 labels"):
        load_with(tmp_path, "data_batch_2", old_pickle(data, labels[:-1]))


def test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    data, labels = some_rows(20, 10)
    with pytest.raises(DataError, match="data_batch_2: `data` is not an array of uint8 with 3072"):
        load_with(tmp_path, "data_batch_2", old_pickle(data[:, :100], labels))


def test_a_batch_of_cifar100_is_not_one_of_cifar10(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="data_batch_2: no entry 'labels'"):
        load_with(tmp_path, "data_batch_2", old_pickle(*some_rows(20, 10), b"fine_labels"))


def test_a_truncated_binary_batch_is_refused(tmp_path: Path) -> None:
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        (tmp_path / f"{name}.bin").write_bytes(bytes(3073 * 3 - 1))
    with pytest.raises(DataError, match=r"data_batch_1.bin: 9218 bytes, expected a multiple"):
        load_dataset("cifar10", root=tmp_path, cache=tmp_path / "c", options=PARTIAL)


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "d")
    (tmp_path / "d" / "data_batch_4").unlink()
    with pytest.raises(DataError, match="data_batch_4: missing"):
        load_dataset("cifar10", root=tmp_path / "d", cache=tmp_path / "c")


def test_a_part_of_the_set_must_be_asked_for(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "d")
    with pytest.raises(DataError, match="100 training and 20 test images, but cifar10 has 50000"):
        load_dataset("cifar10", root=tmp_path / "d", cache=tmp_path / "c")


def test_cifar100_has_a_hundred_names() -> None:
    names = DATASETS["cifar100"].class_names
    assert len(set(names)) == 100
    assert list(names) == sorted(names)
