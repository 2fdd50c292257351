"""Parquet, IDX, MATLAB files and image folders, each written here in its real format."""

import gzip
import io
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from scipy.io import savemat

from nefl.data import DATASETS, Dataset, idx, load_dataset
from nefl.errors import DataError

Pixels = npt.NDArray[np.uint8]
CIFAR_CLASSES = DATASETS["cinic10"].class_names


def random_pixels(*shape: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def encode(pixels: Pixels, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, lossless=True)
    return out.getvalue()


def write_parquet(
    path: Path,
    images: Sequence[bytes],
    labels: Sequence[int],
    columns: tuple[str, str] = ("img", "label"),
    struct_column: bool = True,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    column = [{"bytes": data, "path": None} for data in images] if struct_column else list(images)
    pq.write_table(pa.table({columns[0]: column, columns[1]: list(labels)}), path)


def load(name: str, root: Path, **options: object) -> Dataset:
    return load_dataset(name, root=root, cache=root / "cache", options={"partial": True, **options})


@pytest.mark.parametrize("folder", ["", "data", "plain_text"])
def test_parquet_shards_are_read_in_order(tmp_path: Path, folder: str) -> None:
    pixels = random_pixels(30, 32, 32, 3)
    coded = [encode(image, "WEBP") for image in pixels]
    where = tmp_path / folder
    write_parquet(where / "train-00001-of-00002.parquet", coded[10:20], [2] * 10)
    write_parquet(where / "train-00000-of-00002.parquet", coded[:10], [1] * 10)
    write_parquet(where / "test-00000-of-00001.parquet", coded[20:], range(10))
    found = load("cifar10", tmp_path)
    np.testing.assert_array_equal(found.train["image"], pixels[:20].transpose(0, 3, 1, 2))
    assert found.train["label"].tolist() == [1] * 10 + [2] * 10
    assert found.test["label"].tolist() == list(range(10))


def test_parquet_of_plain_bytes_and_grey_images(tmp_path: Path) -> None:
    pixels = random_pixels(4, 28, 28)
    coded = [encode(image) for image in pixels]
    for part in ("train", "test"):
        path = tmp_path / "fashion_mnist" / f"{part}-00000-of-00001.parquet"
        write_parquet(path, coded, range(4), ("image", "label"), struct_column=False)
    found = load("fashion-mnist", tmp_path)
    np.testing.assert_array_equal(found.train["image"][:, 0], pixels)


def test_cifar100_parquet_takes_fine_label(tmp_path: Path) -> None:
    coded = [encode(image) for image in random_pixels(3, 32, 32, 3)]
    for part in ("train", "test"):
        path = tmp_path / "cifar100" / f"{part}-00000-of-00001.parquet"
        write_parquet(path, coded, [0, 50, 99], ("img", "fine_label"))
    assert load("cifar100", tmp_path).train["label"].tolist() == [0, 50, 99]


def test_svhn_parquet_ignores_the_extra_part(tmp_path: Path) -> None:
    coded = [encode(image) for image in random_pixels(3, 32, 32, 3)]
    for part in ("train", "test", "extra"):
        path = tmp_path / "cropped_digits" / f"{part}-00000-of-00001.parquet"
        write_parquet(path, coded, [0, 5, 9], ("image", "label"))
    assert len(load("svhn", tmp_path).train["label"]) == 3


def test_parquet_validation_part_joins_training_only_when_told(tmp_path: Path) -> None:
    coded = [encode(image) for image in random_pixels(3, 32, 32, 3)]
    for part in ("train", "validation", "test"):
        write_parquet(tmp_path / "data" / f"{part}-00000-of-00001.parquet", coded, [0, 5, 9])
    assert len(load("cinic10", tmp_path).train["label"]) == 3
    assert len(load("cinic10", tmp_path, valid="train").train["label"]) == 6


def parquet_pair(root: Path) -> list[bytes]:
    coded = [encode(image) for image in random_pixels(10, 32, 32, 3)]
    for part in ("train", "test"):
        write_parquet(root / f"{part}-00000-of-00001.parquet", coded, range(10))
    return coded


def test_truncated_parquet_is_refused(tmp_path: Path) -> None:
    parquet_pair(tmp_path)
    path = tmp_path / "test-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"test-00000.*not a complete parquet file"):
        load("cifar10", tmp_path)


def test_parquet_image_that_does_not_decode_is_named_with_its_row(tmp_path: Path) -> None:
    coded = parquet_pair(tmp_path)
    coded[6] = coded[6][: len(coded[6]) // 2]
    write_parquet(tmp_path / "train-00000-of-00001.parquet", coded, range(10))
    with pytest.raises(DataError, match=r"train-00000.*row 6: the image does not decode"):
        load("cifar10", tmp_path)


def test_parquet_image_of_another_size_is_named(tmp_path: Path) -> None:
    coded = parquet_pair(tmp_path)
    coded[3] = encode(random_pixels(32, 31, 3))
    write_parquet(tmp_path / "train-00000-of-00001.parquet", coded, range(10))
    with pytest.raises(DataError, match="row 3: image of 31x32 pixels, expected 32x32"):
        load("cifar10", tmp_path)


def test_parquet_of_another_set_is_refused(tmp_path: Path) -> None:
    coded = parquet_pair(tmp_path)
    write_parquet(tmp_path / "test-00000-of-00001.parquet", coded, range(10), ("img", "fine_label"))
    with pytest.raises(DataError, match="no column label; it has fine_label, img"):
        load("cifar10", tmp_path)


def test_parquet_label_out_of_range_is_named(tmp_path: Path) -> None:
    coded = parquet_pair(tmp_path)
    write_parquet(tmp_path / "test-00000-of-00001.parquet", coded, [*range(9), 10])
    with pytest.raises(DataError, match=r"test-00000.*row 9 has label 10"):
        load("cifar10", tmp_path)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    coded = parquet_pair(tmp_path)
    (tmp_path / "train-00000-of-00001.parquet").unlink()
    write_parquet(tmp_path / "train-00001-of-00002.parquet", coded, range(10))
    with pytest.raises(DataError, match="shard 00000 of 2 is missing"):
        load("cifar10", tmp_path)


def test_a_set_that_lacks_a_class_is_refused(tmp_path: Path) -> None:
    pixels = random_pixels(60_000, 28, 28)
    write_idx(tmp_path, pixels, np.zeros(60_000, np.uint8), "train")
    write_idx(tmp_path, pixels[:10_000], np.zeros(10_000, np.uint8), "t10k")
    with pytest.raises(DataError, match="1 classes, but fashion-mnist has 10"):
        load_dataset("fashion-mnist", root=tmp_path, cache=tmp_path / "cache")


def idx_bytes(array: Pixels) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def write_idx(
    folder: Path, images: Pixels, labels: Pixels, prefix: str, packed: bool = False
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        f"{prefix}-images-idx3-ubyte": idx_bytes(images),
        f"{prefix}-labels-idx1-ubyte": idx_bytes(labels),
    }
    for name, content in contents.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


def write_fashion(folder: Path, packed: bool) -> Pixels:
    pixels = random_pixels(20, 28, 28)
    labels = np.arange(20, dtype=np.uint8) % 10
    for prefix in ("train", "t10k"):
        write_idx(folder, pixels, labels, prefix, packed)
    return pixels


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files(tmp_path: Path, packed: bool) -> None:
    pixels = write_fashion(tmp_path, packed)
    found = load("fashion-mnist", tmp_path)
    np.testing.assert_array_equal(found.test["image"][:, 0], pixels)
    assert found.test["label"].tolist() == [*range(10), *range(10)]


def test_fashion_mnist_is_found_where_debian_puts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_fashion(tmp_path / "debian", packed=True)
    assert Path("/usr/share/datasets/fashion-mnist") == idx.DEBIAN_FASHION_MNIST
    monkeypatch.setattr("nefl.data.datasets.DEBIAN_FASHION_MNIST", tmp_path / "debian")
    found = load_dataset("fashion-mnist", cache=tmp_path / "c", options={"partial": True})
    assert len(found.train["label"]) == 20


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("train-images-idx3-ubyte", idx_bytes(random_pixels(20, 28, 28))[:-1], "found 15679"),
        ("train-images-idx3-ubyte", idx_bytes(random_pixels(20, 28, 28)) + b"x", "found more"),
        ("train-images-idx3-ubyte", idx_bytes(random_pixels(20, 28)), "starts with 00000802"),
        ("train-images-idx3-ubyte", idx_bytes(random_pixels(20, 8, 8)), "images of"),
        ("train-labels-idx1-ubyte", idx_bytes(random_pixels(19) % 10), "20 images but 19 labels"),
        ("train-labels-idx1-ubyte", idx_bytes(np.full(20, 10, np.uint8)), "row 0 has label 10"),
        ("train-images-idx3-ubyte", struct.pack(">HBB3I", 0, 8, 3, 2**31, 9, 9), "promises"),
        ("train-images-idx3-ubyte", b"", "not an IDX file"),
    ],
)
def test_a_wrong_idx_file_is_refused_by_name(
    tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    write_fashion(tmp_path, packed=False)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}: .*{complaint}"):
        load("fashion-mnist", tmp_path)


def test_truncated_gzip_is_refused(tmp_path: Path) -> None:
    write_fashion(tmp_path, packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz: damaged gzip"):
        load("fashion-mnist", tmp_path)


def test_missing_idx_file_is_named(tmp_path: Path) -> None:
    write_fashion(tmp_path, packed=True)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte: missing"):
        load("fashion-mnist", tmp_path)


def write_svhn(folder: Path) -> Pixels:
    pixels = random_pixels(32, 32, 3, 10)
    labels = np.arange(1, 11, dtype=np.uint8)[:, None]
    for part in ("train", "test"):
        savemat(folder / f"{part}_32x32.mat", {"X": pixels, "y": labels}, do_compression=True)
    return pixels


def test_svhn_label_ten_is_the_digit_zero(tmp_path: Path) -> None:
    pixels = write_svhn(tmp_path)
    found = load("svhn", tmp_path)
    assert found.train["label"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    np.testing.assert_array_equal(found.train["image"][4, 2], pixels[:, :, 2, 4])


def test_truncated_mat_is_refused(tmp_path: Path) -> None:
    write_svhn(tmp_path)
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError, match=r"test_32x32.mat: not a complete SVHN file"):
        load("svhn", tmp_path)


@pytest.mark.parametrize("label", [0, 11])
def test_svhn_label_out_of_range_is_refused(tmp_path: Path, label: int) -> None:
    pixels = write_svhn(tmp_path)
    labels = np.array([[*range(1, 10), label]], np.uint8).T
    savemat(tmp_path / "test_32x32.mat", {"X": pixels, "y": labels})
    with pytest.raises(DataError, match=f"test_32x32.mat: row 9 has label {label}"):
        load("svhn", tmp_path)


def write_folder(root: Path, parts: Sequence[str], classes: Sequence[str], size: int = 32) -> None:
    for part in parts:
        for label, name in enumerate(classes):
            folder = root / part / name
            folder.mkdir(parents=True)
            for n in range(2):
                pixels = np.full((size, size, 3), 10 * label + n, np.uint8)
                (folder / f"{n}.png").write_bytes(encode(pixels))


def test_cinic10_ignores_valid_unless_told(tmp_path: Path) -> None:
    write_folder(tmp_path, ("train", "valid", "test"), CIFAR_CLASSES)
    found = load("cinic10", tmp_path)
    assert len(found.train["label"]) == len(found.test["label"]) == 20
    assert found.train["label"].tolist() == sorted([*range(10), *range(10)])
    assert found.train["image"][3, 0, 0, 0] == 11  # the second image of class 1
    assert len(load("cinic10", tmp_path, valid="train").train["label"]) == 40


def test_class_folders_follow_the_sets_own_order(tmp_path: Path) -> None:
    names = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker")
    write_folder(tmp_path, ("train", "test"), (*names, "bag", "ankle boot"), size=28)
    found = load("fashion-mnist", tmp_path)
    assert found.train["image"][::2, 0, 0, 0].tolist() == [10 * n for n in range(10)]


@pytest.mark.parametrize("names", [("truck", "cat"), ("9", "3")])
def test_a_part_may_have_fewer_classes_and_goes_by_name(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    write_folder(tmp_path, ("train",), names)
    write_folder(tmp_path, ("test",), names[:1])
    found = load("cifar10", tmp_path)
    assert sorted(set(found.train["label"].tolist())) == [3, 9]
    assert set(found.test["label"].tolist()) == {9}
    assert tuple(found.facts["class_names"]) == CIFAR_CLASSES
    with pytest.raises(DataError, match="2 class folders, expected 10; .* set the option partial"):
        load("cifar10", tmp_path, partial=False)


def test_a_part_with_a_class_that_is_none_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, ("train", "test"), ("cat", "fox"))
    with pytest.raises(DataError, match="there is no class 'fox'; rename or remove"):
        load("cifar10", tmp_path)


def test_numbered_class_folders_are_ordered_as_numbers(tmp_path: Path) -> None:
    write_folder(tmp_path, ("train", "test"), [str(n) for n in range(12)], size=4)
    found = load_dataset("images", root=tmp_path, cache=tmp_path / "cache")
    assert tuple(found.facts["class_names"]) == tuple(str(n) for n in range(12))
    assert found.train["image"][-1, 0, 0, 0] == 111


def test_own_image_folder_as_grey(tmp_path: Path) -> None:
    write_folder(tmp_path, ("train", "test"), ("cat", "dog"), size=6)
    options = {"channels": 1}
    found = load_dataset("images", root=tmp_path, cache=tmp_path / "cache", options=options)
    assert found.train["image"].shape[1:] == (1, 6, 6)
    assert load_dataset("images", root=tmp_path, cache=tmp_path / "cache").train["image"].shape[
        1:
    ] == (3, 6, 6)


def test_unequal_image_sizes_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, ("train", "test"), ("cat", "dog"), size=6)
    (tmp_path / "test" / "dog" / "1.png").write_bytes(encode(random_pixels(6, 7, 3)))
    with pytest.raises(DataError, match=r"test/dog/1.png: image of 7x6 pixels, expected 6x6"):
        load_dataset("images", root=tmp_path, cache=tmp_path / "cache")


def test_a_file_that_is_no_image_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, ("train", "test"), ("cat", "dog"), size=6)
    (tmp_path / "train" / "cat" / "0.png").write_text("not an image")
    with pytest.raises(DataError, match=r"train/cat/0.png: the image does not decode"):
        load_dataset("images", root=tmp_path, cache=tmp_path / "cache")


def test_test_classes_must_be_the_training_classes(tmp_path: Path) -> None:
    write_folder(tmp_path, ("train",), ("cat", "dog"), size=6)
    write_folder(tmp_path, ("test",), ("cat", "fox"), size=6)
    with pytest.raises(DataError, match=r"missing \['dog'\], unexpected \['fox'\]"):
        load_dataset("images", root=tmp_path, cache=tmp_path / "cache")


def test_an_empty_folder_names_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no cifar10 in it; expected train-\*.parquet"):
        load_dataset("cifar10", root=tmp_path, cache=tmp_path / "cache")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"absent: no such file or folder; expected train_32x32.mat"
    ):
        load_dataset("svhn", root=tmp_path / "absent", cache=tmp_path / "cache")
