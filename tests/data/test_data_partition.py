"""Partitions: the same as flwr-datasets', repeatable, checked."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nefl.data import Partition, draw_label_distribution, partition_clients
from nefl.errors import ConfigError, DataError

LABELS = np.random.default_rng(0).integers(0, 10, 2000)


def all_once(partition: Partition, examples: int) -> bool:
    return bool((np.sort(partition.indices) == np.arange(examples)).all())


@pytest.mark.parametrize("clients", [1, 7, 100])
def test_iid_equals_the_iid_partitioner_on_a_shuffled_set(clients: int) -> None:
    from datasets import Dataset
    from flwr_datasets.partitioner import IidPartitioner

    partitioner = IidPartitioner(clients)
    rows = Dataset.from_dict({"index": np.arange(2000), "label": LABELS})
    partitioner.dataset = rows.shuffle(seed=5)
    ours = partition_clients(LABELS, clients, "iid", seed=5)
    for client in range(clients):
        theirs = list(partitioner.load_partition(client)["index"])
        assert ours.client(client).tolist() == theirs


@pytest.mark.parametrize("kind", ["dirichlet", "pathological"])
def test_indices_equal_what_the_partitioner_loads(kind: str) -> None:
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner, PathologicalPartitioner

    if kind == "dirichlet":
        partitioner = DirichletPartitioner(20, "label", 0.5, min_partition_size=1, seed=3)
    else:
        partitioner = PathologicalPartitioner(
            20, "label", 3, class_assignment_mode="first-deterministic", seed=3
        )
    partitioner.dataset = Dataset.from_dict({"index": np.arange(2000), "label": LABELS})
    ours = partition_clients(LABELS, 20, kind, alpha=0.5, classes_per_client=3, seed=3)
    for client in range(20):
        assert ours.client(client).tolist() == list(partitioner.load_partition(client)["index"])
    assert all_once(ours, 2000)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 5))
def test_iid_gives_every_example_once_and_evenly(examples: int, clients: int, seed: int) -> None:
    partition = partition_clients(
        np.zeros(examples, np.int64), clients, "iid", seed=seed, min_examples=0
    )
    assert all_once(partition, examples)
    assert partition.sizes.max() - partition.sizes.min() <= 1


def test_smaller_alpha_is_more_unequal() -> None:
    def largest_share(alpha: float) -> float:
        partition = partition_clients(LABELS, 10, "dirichlet", alpha=alpha, seed=1)
        counts = partition.label_counts(LABELS, 10)
        return float((counts.max(1) / counts.sum(1)).mean())

    assert largest_share(0.3) > 2 * largest_share(100.0)


def test_pathological_clients_hold_the_classes_they_may() -> None:
    partition = partition_clients(LABELS, 20, "pathological", classes_per_client=2, seed=1)
    counts = partition.label_counts(LABELS, 10)
    assert ((counts > 0).sum(1) == 2).all()
    assert (counts.sum(0) == np.bincount(LABELS)).all()


ACROSS = """
import hashlib, sys
import numpy as np
from nefl.data import partition_clients
labels = np.random.default_rng(0).integers(0, 10, 2000)
for kind in ("iid", "dirichlet", "pathological"):
    p = partition_clients(labels, 20, kind, seed=11)
    print(hashlib.sha256(p.indices.tobytes() + p.offsets.tobytes()).hexdigest())
"""


def test_the_same_seed_gives_the_same_bytes_in_another_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ACROSS],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONHASHSEED": "77"},
    )
    here = []
    for kind in ("iid", "dirichlet", "pathological"):
        partition = partition_clients(LABELS, 20, kind, seed=11)
        content = partition.indices.tobytes() + partition.offsets.tobytes()
        here.append(hashlib.sha256(content).hexdigest())
    assert done.stdout.split() == here
    other = partition_clients(LABELS, 20, "iid", seed=12)
    assert (other.indices != partition_clients(LABELS, 20, "iid", seed=11).indices).any()


def test_a_hundred_thousand_clients() -> None:
    labels = np.arange(200_000) % 10
    partition = partition_clients(labels, 100_000, "iid", seed=1)
    assert partition.clients == 100_000
    assert (partition.sizes == 2).all()
    assert all_once(partition, 200_000)
    assert partition.label_counts(labels, 10).sum() == 200_000


def test_a_client_with_too_few_examples_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"dirichlet: client \d+ gets 0 examples, .*larger alpha, fewer clients"
    ):
        partition_clients(LABELS, 200, "dirichlet", alpha=0.01, seed=1)
    permitted = partition_clients(LABELS, 200, "dirichlet", alpha=0.01, seed=1, min_examples=0)
    assert permitted.sizes.min() == 0
    with pytest.raises(ConfigError, match="2001 clients of at least 1 examples need 2001"):
        partition_clients(LABELS, 2001, "iid")


@pytest.mark.parametrize(
    ("kind", "arguments", "complaint"),
    [
        ("sorted", {}, "unknown partition 'sorted'"),
        ("dirichlet", {"alpha": 0.0}, "alpha is 0.0"),
        ("dirichlet", {"alpha": float("nan")}, "alpha is nan"),
        ("pathological", {"classes_per_client": 11}, "11 classes a client, expected 1 to 10"),
        ("iid", {"seed": -1}, "seed >= 0"),
        ("list", {}, "needs path"),
    ],
)
def test_impossible_arguments(kind: str, arguments: dict[str, float], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        partition_clients(LABELS, 10, kind, **arguments)  # type: ignore[arg-type]


def test_pathological_that_cannot_be_dealt_out() -> None:
    labels = np.array([0] * 98 + [1] * 2)
    with pytest.raises(ConfigError, match="partition pathological: 50 clients with 2 classes each"):
        partition_clients(labels, 50, "pathological", classes_per_client=2)


def write_lists(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_lists(tmp_path: Path) -> None:
    path = write_lists(tmp_path / "p.json", [[5, 3], [0], [9, 1, 2]])
    partition = partition_clients(LABELS[:10], 3, "list", path=path)
    assert [partition.client(i).tolist() for i in range(3)] == [[5, 3], [0], [9, 1, 2]]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ([[0], [1], [10]], "client 2 has index 10, expected 0 to 9"),
        ([[0], [-1], [2]], "client 1 has index -1"),
        ([[0], [1.5], [2]], "client 1 has index 1.5"),
        ([[0], [True], [2]], "client 1 has index True"),
        ([[0, 1], [2], [1]], "example 1 is given to client 0 and to client 2"),
        ([[0, 0], [2], [1]], "example 0 is given to client 0 and to client 0"),
        ([[0], [1]], "2 lists, but the run has 3 clients"),
        ({"0": [1]}, "expected a list of lists"),
        ([[0], 1, [2]], "expected a list of lists"),
    ],
)
def test_wrong_lists(tmp_path: Path, content: object, complaint: str) -> None:
    path = write_lists(tmp_path / "p.json", content)
    with pytest.raises(DataError, match=f"p.json: .*{complaint}"):
        partition_clients(LABELS[:10], 3, "list", path=path)


def test_an_empty_list_must_be_permitted(tmp_path: Path) -> None:
    path = write_lists(tmp_path / "p.json", [[0], [], [2]])
    with pytest.raises(ConfigError, match="client 1 gets 0 examples"):
        partition_clients(LABELS[:10], 3, "list", path=path)
    partition = partition_clients(LABELS[:10], 3, "list", path=path, min_examples=0)
    assert partition.sizes.tolist() == [1, 0, 1]


def test_save_and_load(tmp_path: Path) -> None:
    partition = partition_clients(LABELS, 9, "iid")
    partition.save(tmp_path / "p.safetensors")
    again = Partition.load(tmp_path / "p.safetensors")
    np.testing.assert_array_equal(again.indices, partition.indices)
    np.testing.assert_array_equal(again.offsets, partition.offsets)
    assert [path.name for path in tmp_path.iterdir()] == ["p.safetensors"]
    (tmp_path / "p.safetensors").write_bytes((tmp_path / "p.safetensors").read_bytes()[:-8])
    for name in ("p.safetensors", "absent"):
        with pytest.raises(DataError, match=f"{name}: not a saved partition"):
            Partition.load(tmp_path / name)


def test_offsets_are_checked() -> None:
    with pytest.raises(DataError, match="offsets must rise"):
        Partition(np.arange(4), np.array([0, 3, 2, 4]))
    with pytest.raises(DataError, match="offsets must rise"):
        Partition(np.arange(4), np.array([0, 3]))
    with pytest.raises(DataError, match="indices must be int64"):
        Partition(np.arange(4).astype(np.int32), np.array([0, 4]))


def test_a_client_that_is_not_there() -> None:
    partition = partition_clients(LABELS, 9, "iid")
    for client in (-1, 9):
        with pytest.raises(IndexError):
            partition.client(client)


def test_the_picture() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1, 2, 2])
    partition = Partition(np.arange(8), np.array([0, 4, 8]))
    lines = draw_label_distribution(partition, labels, 3).splitlines()
    assert lines == [
        "2 clients, 8 examples, 3 classes",
        "client 0 |@@    | 4",
        "client 1 |  ++++| 4",
    ]


def test_the_picture_sums_up_many_clients() -> None:
    partition = partition_clients(LABELS, 100, "iid")
    lines = draw_label_distribution(partition, LABELS, 10).splitlines()
    assert len(lines) == 22
    assert lines[-1].startswith("... and 80 more: 20 to 20 examples each (median 20)")


def test_owners_keep_what_is_theirs() -> None:
    owners = np.array(["b", "a", "c", "a", "b", "a", "d"])
    own = partition_clients(None, 4, "owner", examples=7, owners=owners)
    held = [set(owners[own.client(client)]) for client in range(4)]
    assert sorted(map(sorted, held)) == [["a"], ["b"], ["c"], ["d"]]
    # More owners than clients: whole ones together, the largest first.
    few = partition_clients(None, 2, "owner", examples=7, owners=owners)
    of_each = [sorted(set(owners[few.client(client)])) for client in range(2)]
    assert sorted(owner for some in of_each for owner in some) == ["a", "b", "c", "d"]
    assert sorted(few.sizes.tolist()) == [3, 4]
    with pytest.raises(ConfigError, match=r"4 owners for 5 clients; set clients\.count to"):
        partition_clients(None, 5, "owner", examples=7, owners=owners)
    with pytest.raises(ConfigError, match="no column says whose"):
        partition_clients(None, 2, "owner", examples=7)


def test_unequal_quantities() -> None:
    alike = partition_clients(None, 10, "quantity", examples=1000, alpha=1000.0, seed=1)
    unlike = partition_clients(None, 10, "quantity", examples=1000, alpha=0.3, seed=1)
    assert np.sort(unlike.indices).tolist() == list(range(1000))
    assert alike.sizes.std() < 20 < unlike.sizes.std()
    assert unlike.sizes.min() >= 1
    again = partition_clients(None, 10, "quantity", examples=1000, alpha=0.3, seed=1)
    np.testing.assert_array_equal(again.indices, unlike.indices)
    with pytest.raises(ConfigError, match="the examples have no classes; take iid"):
        partition_clients(None, 10, "dirichlet", examples=1000)


def test_stronger_tiers_have_classes_that_weaker_ones_lack() -> None:
    labels = np.arange(400) % 10
    found = partition_clients(labels, 20, "tiers", tiers=5, seed=1)
    assert sorted(found.indices.tolist()) == list(range(400)), "every example has one owner"
    counts = found.label_counts(labels, 10)
    for client in range(20):
        tier = client * 5 // 20 + 1
        assert set(np.flatnonzero(counts[client])) == set(range(2 * tier)), client
    for label in range(10):
        held = counts[counts[:, label] > 0, label]
        assert held.max() - held.min() <= 1, "dealt evenly among those who have it"
    again = partition_clients(labels, 20, "tiers", tiers=5, seed=1)
    assert np.array_equal(again.indices, found.indices)
    other = partition_clients(labels, 20, "tiers", tiers=5, seed=2)
    assert not np.array_equal(other.indices, found.indices)


@pytest.mark.parametrize("tiers", [0, 11])
def test_more_tiers_than_classes_are_refused(tiers: int) -> None:
    with pytest.raises(ConfigError, match="tiers, expected 1 to 10"):
        partition_clients(np.arange(400) % 10, 20, "tiers", tiers=tiers)
