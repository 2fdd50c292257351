"""The memory-mapped cache: shared, atomic, verified."""

import errno
import json
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nefl import files
from nefl.data import Dataset, Examples, cache, load_dataset, open_cached
from nefl.errors import DataError

SMALL = {"shape": [1, 4, 4], "train": 40, "test": 20, "classes": 4}


def load_small(folder: Path) -> Dataset:
    return load_dataset("synthetic", cache=folder, options=SMALL)


def folder_of(dataset: Dataset) -> Path:
    assert dataset.folder is not None
    return dataset.folder


def file_of(dataset: Dataset, name: str) -> Path:
    return folder_of(dataset) / f"{name}.npy"


def write_npz(path: Path, value: int = 7, rows: int = 6) -> None:
    images = np.full((rows, 1, 2, 2), value, np.uint8)
    images[0] = 0
    labels = np.arange(rows) % 2
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)


def test_arrays_are_read_only_maps_of_contiguous_files(tmp_path: Path) -> None:
    dataset = load_small(tmp_path)
    for split in (dataset.train, dataset.test):
        assert isinstance(split["image"], np.memmap)
        assert split["image"].dtype == np.uint8
        assert split["label"].dtype == np.int64
        assert split["image"].flags.c_contiguous
        assert not split["image"].flags.writeable
    assert sorted(dataset.checksums) == ["test_image", "test_label", "train_image", "train_label"]
    assert all(file_of(dataset, name).is_file() for name in dataset.checksums)


def test_another_process_opens_the_same_arrays(tmp_path: Path) -> None:
    dataset = load_small(tmp_path)
    again = open_cached(folder_of(dataset), verify=False)
    np.testing.assert_array_equal(again.train["image"], dataset.train["image"])
    assert (again.facts["mean"], again.facts["std"], again.name) == (
        dataset.facts["mean"],
        dataset.facts["std"],
        "synthetic",
    )
    assert tuple(again.facts["class_names"]) == tuple(dataset.facts["class_names"])


def test_mean_and_std_are_those_of_the_training_images(tmp_path: Path) -> None:
    options = {**SMALL, "shape": [3, 5, 5]}
    dataset = load_dataset("synthetic", cache=tmp_path, options=options)
    scaled = dataset.train["image"].astype(np.float64) / 255
    np.testing.assert_allclose(dataset.facts["mean"], scaled.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(dataset.facts["std"], scaled.std((0, 2, 3)), rtol=1e-12)


def test_decoded_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_small(tmp_path)

    def refuse(*_: object) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr("nefl.data.sources.make_synthetic", refuse)
    load_small(tmp_path)


def test_a_changed_source_is_decoded_again(tmp_path: Path) -> None:
    write_npz(tmp_path / "own.npz", value=7)
    load_dataset("arrays", root=tmp_path / "own.npz", cache=tmp_path / "c")
    write_npz(tmp_path / "own.npz", value=9, rows=8)
    again = load_dataset("arrays", root=tmp_path / "own.npz", cache=tmp_path / "c")
    assert again.train["image"].max() == 9


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("array", ["train_image", "test_label"])
def test_a_changed_byte_is_noticed(tmp_path: Path, array: str) -> None:
    dataset = load_small(tmp_path)
    flip_a_byte(file_of(dataset, array))
    with pytest.raises(DataError, match=rf"{array}.npy: .*checksum.*delete the folder"):
        open_cached(folder_of(dataset), verify=True)
    open_cached(folder_of(dataset), verify=False)


def test_a_truncated_array_is_noticed_even_without_checksums(tmp_path: Path) -> None:
    dataset = load_small(tmp_path)
    path = file_of(dataset, "train_image")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"train_image.npy: .*bytes instead of"):
        open_cached(folder_of(dataset), verify=False)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": 1}', '{"format": 1, "arrays": 3}'])
def test_a_damaged_description_is_noticed(tmp_path: Path, content: str) -> None:
    folder = folder_of(load_small(tmp_path))
    (folder / "dataset.json").write_text(content)
    with pytest.raises(DataError, match=r"dataset.json: the cached data set is damaged"):
        open_cached(folder, verify=True)


def test_a_damaged_cache_is_built_again_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = load_small(tmp_path)
    before = first.train["image"].copy()
    flip_a_byte(file_of(first, "train_image"))
    with caplog.at_level(logging.WARNING):
        again = load_small(tmp_path)
    assert "train_image.npy" in caplog.text
    np.testing.assert_array_equal(again.train["image"], before)
    open_cached(folder_of(again), verify=True)


def test_without_its_source_the_cache_serves_until_it_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_npz(tmp_path / "own.npz")
    load_dataset("arrays", root=tmp_path / "own.npz", cache=tmp_path / "c")
    (tmp_path / "own.npz").unlink()
    with caplog.at_level(logging.WARNING):
        kept = load_dataset("arrays", root=tmp_path / "own.npz", cache=tmp_path / "c")
    assert "own.npz is gone" in caplog.text
    flip_a_byte(file_of(kept, "test_image"))
    with pytest.raises(DataError, match=r"test_image.npy: .*checksum"):
        load_dataset("arrays", root=tmp_path / "own.npz", cache=tmp_path / "c")


def test_a_full_disk_leaves_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_save = np.save

    def save(path: Path, array: Any, **options: Any) -> None:
        if "test_image" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real_save(path, array, **options)

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", save)
        with pytest.raises(DataError, match=r"test_image.npy: .*cannot be written.*NEFL_CACHE"):
            load_small(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(load_small(tmp_path).train["label"]) == 40


KILLED = """
import os, sys
import numpy as np
from nefl.data import load_dataset
real, calls = np.save, []
def save(*arguments, **options):
    calls.append(1)
    if len(calls) == 3:
        os._exit(9)
    real(*arguments, **options)
np.save = save
load_dataset("synthetic", cache=sys.argv[1], options={options})
"""


def test_a_kill_midway_leaves_nothing_that_is_believed(tmp_path: Path) -> None:
    script = KILLED.replace("{options}", repr(SMALL))
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=120)
    assert done.returncode == 9
    left = [path.name for path in tmp_path.iterdir() if path.is_dir()]
    assert len(left) == 1
    assert left[0].endswith(".partial")
    dataset = load_small(tmp_path)
    open_cached(folder_of(dataset), verify=True)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [dataset.folder]


def test_two_that_race_decode_once(tmp_path: Path) -> None:
    reads: list[int] = []
    results: list[Dataset] = []

    def read() -> Examples:
        reads.append(1)
        time.sleep(0.2)  # long enough that the other arrives meanwhile
        columns: dict[str, Any] = {
            "x": np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2),
            "y": np.arange(2),
        }
        return Examples(columns, columns, {})

    def run() -> None:
        results.append(cache.open_or_build(tmp_path / "x", "own", {}, read, verify=True))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    assert len(reads) == 1


def test_two_processes_that_race_both_get_the_data(tmp_path: Path) -> None:
    script = (
        "import sys; from nefl.data import load_dataset; "
        f"d = load_dataset('synthetic', cache=sys.argv[1], options={SMALL!r}); "
        "print(int(d.train['image'].sum()))"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    sums = [process.communicate(timeout=120)[0] for process in running]
    assert sums[0] == sums[1] == f"{int(load_small(tmp_path).train['image'].sum())}\n"
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_an_unwritable_cache_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"file.*the data cache cannot be written"):
        load_small(tmp_path / "file")


def test_an_unreadable_source_is_not_blamed_on_the_cache(tmp_path: Path) -> None:
    def read() -> Examples:
        raise PermissionError(errno.EACCES, "Permission denied", "the/source")

    with pytest.raises(DataError, match="the/source: cannot be read"):
        cache.open_or_build(tmp_path / "x", "own", {}, read, verify=True)


def test_description_records_the_sources(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    write_npz(path)
    folder = folder_of(load_dataset("arrays", root=path, cache=tmp_path / "c"))
    description = json.loads((folder / "dataset.json").read_text())
    found = path.stat()
    assert description["sources"]["files"] == [[str(path), found.st_size, found.st_mtime_ns]]


def test_default_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEFL_CACHE", "chosen")
    monkeypatch.setenv("XDG_CACHE_HOME", "xdg")
    assert files.default_cache() == Path("chosen")
    monkeypatch.delenv("NEFL_CACHE")
    assert files.default_cache() == Path("xdg/nefl")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert files.default_cache() == Path.home() / ".cache" / "nefl"


def test_a_changed_text_is_read_again_wherever_it_lies(tmp_path: Path) -> None:
    root = tmp_path / "texts"
    (root / "ann" / "letters").mkdir(parents=True)
    files = [root / "bob.txt", root / "ann" / "a.txt", root / "ann" / "letters" / "b.txt"]
    for file in files:
        file.write_text("a" * 500)
    (root / ".DS_Store").write_bytes(b"hidden" * 100)

    def tokens() -> set[int]:
        found = load_dataset(
            "text", root=root, cache=tmp_path / "c", options={"length": 16}, learn="next-token"
        )
        return set(np.unique(found.train["tokens"]).tolist()) - {ord("\n")}

    assert tokens() == {ord("a")}
    for number, file in enumerate(files):
        file.write_text("bcd"[number] * 510)
        assert ord("bcd"[number]) in tokens()


def test_what_is_gone_is_not_taken_from_another_task(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text('{"text": "hello world, hello", "label": "a"}\n' * 20)

    def load(learn: str) -> Dataset:
        options = {"length": 16}
        return load_dataset("json-lines", root=path, cache=tmp_path, options=options, learn=learn)

    for learn in ("next-token", "text-classification"):
        load(learn)
    path.unlink()
    assert "label" not in load("next-token").train
