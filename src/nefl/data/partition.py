"""Dividing the training examples among the clients, by flwr-datasets' partitioners."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nefl.data.subsets import Labels
from nefl.errors import ConfigError, DataError
from nefl.files import write_atomically
from nefl.parsing import parse_json

PARTITIONS = ("iid", "quantity", "dirichlet", "pathological", "tiers", "owner", "list")
BY_LABEL = ("dirichlet", "pathological", "tiers")


@dataclass(frozen=True, eq=False)
class Partition:
    """Which training examples belong to which client.

    Attributes:
        indices: int64, the examples of client 0, then of client 1, and so on.
        offsets: int64 [clients + 1]; client i owns indices[offsets[i]:offsets[i + 1]].
    """

    indices: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        for name in ("indices", "offsets"):
            array = getattr(self, name)
            if array.dtype != np.int64 or array.ndim != 1:
                raise DataError(f"partition: {name} must be int64 with one axis")
        ends = len(self.offsets) >= 2 and self.offsets[0] == 0
        if not ends or self.offsets[-1] != len(self.indices) or (np.diff(self.offsets) < 0).any():
            raise DataError(
                "partition: offsets must rise from 0 to the number of indices, one step a client"
            )

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Number of examples of each client."""
        return np.diff(self.offsets)

    def client(self, client: int) -> npt.NDArray[np.int64]:
        """The examples of one client, a view.

        Raises:
            IndexError: there is no such client.
        """
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client} of {self.clients}")
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def label_counts(self, labels: Labels, classes: int) -> npt.NDArray[np.int64]:
        """Examples of each class at each client: int64 [clients, classes]."""
        owner = np.repeat(np.arange(self.clients, dtype=np.int64), self.sizes)
        cells = owner * classes + labels[self.indices]
        counts = np.bincount(cells, minlength=self.clients * classes)
        return counts.reshape(self.clients, classes).astype(np.int64)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, whole or not at all."""
        from safetensors.numpy import save_file

        arrays = {"indices": self.indices, "offsets": self.offsets}
        write_atomically(Path(path), lambda beside: save_file(arrays, beside), follow_links=False)

    @classmethod
    def load(cls, path: str | Path) -> "Partition":
        """Read what `save` wrote.

        Raises:
            DataError: the file is missing, damaged or no partition.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            arrays = load_file(path)
            return cls(arrays["indices"], arrays["offsets"])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: not a saved partition ({error}); write it again") from error


def partition_clients(
    labels: Labels | None,
    clients: int,
    kind: str,
    *,
    examples: int | None = None,
    owners: npt.NDArray[Any] | None = None,
    alpha: float = 0.5,
    classes_per_client: int = 2,
    tiers: int = 5,
    path: str | Path | None = None,
    seed: int = 0,
    min_examples: int = 1,
) -> Partition:
    """Divide examples among clients; the same arguments give the same bytes in any process.

    Args:
        labels: int64 [N], the labels of the training examples; None where they have none.
        clients: number of clients.
        kind: `iid`; `quantity`, alike but of unequal numbers; `dirichlet` or `pathological`, with
            unequal labels; `tiers`, with labels that only clients of higher tiers have; `owner`, as
            a column of the data says; or `list`.
        examples: number of training examples, where there are no labels to count.
        owners: [N], whose each example is, for `owner`.
        alpha: concentration of the Dirichlet distribution; smaller is more unequal.
        classes_per_client: for `pathological`.
        tiers: for `tiers`, how many there are.
        path: for `list`, a JSON file with one list of indices a client.
        seed: of the shuffle and of the draws.
        min_examples: a client with fewer is refused; 0 permits empty clients.

    Raises:
        ConfigError: an impossible argument, or a client with too few examples.
        DataError: a bad file of lists.
    """
    if kind not in PARTITIONS:
        raise ConfigError(f"unknown partition {kind!r}; expected one of {', '.join(PARTITIONS)}")
    if clients < 1 or min_examples < 0 or seed < 0:
        raise ConfigError("partition: needs clients >= 1, min_examples >= 0 and seed >= 0")
    count = len(labels) if labels is not None else examples or 0
    if clients * min_examples > count:
        raise ConfigError(
            f"partition: {clients} clients of at least {min_examples} examples need "
            f"{clients * min_examples}, there are {count}; take fewer clients"
        )
    if kind in BY_LABEL:
        if labels is None:
            raise ConfigError(
                f"partition {kind}: the examples have no classes; take iid, quantity, owner or list"
            )
        if kind == "dirichlet":
            partition = _dirichlet(labels, clients, alpha, seed, min_examples)
        elif kind == "tiers":
            partition = _by_tier(labels, clients, tiers, seed)
        else:
            partition = _pathological(labels, clients, classes_per_client, seed)
    elif kind == "iid":
        partition = _iid(count, clients, seed)
    elif kind == "quantity":
        partition = _quantity(count, clients, alpha, seed, min_examples)
    elif kind == "owner":
        partition = _by_owner(owners, clients, seed)
    else:
        partition = _from_lists(path, count, clients)
    _check_sizes(partition, kind, min_examples)
    return partition


def _check_sizes(partition: Partition, kind: str, min_examples: int) -> None:
    sizes = partition.sizes
    smallest = int(np.argmin(sizes))
    if sizes[smallest] < min_examples:
        remedy = {
            "iid": "take fewer clients",
            "quantity": "take a larger alpha or fewer clients",
            "owner": "leave out owners with few examples, or take fewer clients",
            "dirichlet": "take a larger alpha, fewer clients or another seed",
            "pathological": "take more classes a client, fewer clients or another seed",
            "tiers": "take fewer clients or fewer tiers",
            "list": "give it more in the file, or leave it out",
        }[kind]
        raise ConfigError(
            f"partition {kind}: client {smallest} gets {sizes[smallest]} examples, at least "
            f"{min_examples} are needed; {remedy}"
        )


def _iid(examples: int, clients: int, seed: int) -> Partition:
    # IidPartitioner on Dataset.shuffle(seed) by its own rule: a NumPy permutation cut into
    # contiguous shards, the first ones longer by one. Its load_partition takes about half a
    # millisecond a client, most of a minute for 100,000; a test compares the two.
    indices = np.random.default_rng(seed).permutation(examples).astype(np.int64)
    sizes = np.full(clients, examples // clients, np.int64)
    sizes[: examples % clients] += 1
    return Partition(indices, _offsets(sizes))


def _quantity(examples: int, clients: int, alpha: float, seed: int, least: int) -> Partition:
    """Deal alike examples out in unequal numbers; everybody has the least that is asked for."""
    if not 0 < alpha < float("inf"):
        raise ConfigError(f"partition quantity: alpha is {alpha}, expected more than 0")
    rng = np.random.default_rng(seed)
    indices = rng.permutation(examples).astype(np.int64)
    spare = examples - clients * least
    exact = rng.dirichlet(np.full(clients, alpha)) * spare
    sizes = np.floor(exact).astype(np.int64)
    order = np.argsort(sizes - exact, kind="stable")
    sizes[order[: spare - int(sizes.sum())]] += 1
    return Partition(indices, _offsets(sizes + least))


def _by_owner(owners: npt.NDArray[Any] | None, clients: int, seed: int) -> Partition:
    """Give every client its own examples; more owners than clients are dealt out whole."""
    if owners is None:
        raise ConfigError(
            "partition owner: no column says whose an example is; name it in data.options.client"
        )
    names, owner_of = np.unique(owners, return_inverse=True)
    if len(names) < clients:
        raise ConfigError(
            f"partition owner: {len(names)} owners for {clients} clients; set clients.count to "
            f"{len(names)} or less"
        )
    # In an order of the seed's, each to the client that has least: sizes stay as even as they can.
    counts = np.bincount(owner_of, minlength=len(names))
    client_of = np.arange(len(names))
    if len(names) > clients:
        held = np.zeros(clients, np.int64)
        shuffled = np.random.default_rng(seed).permutation(len(names))
        for owner in shuffled[np.argsort(-counts[shuffled], kind="stable")]:
            client_of[owner] = int(np.argmin(held))
            held[client_of[owner]] += counts[owner]
    owned = client_of[owner_of]
    indices = np.argsort(owned, kind="stable").astype(np.int64)
    return Partition(indices, _offsets(np.bincount(owned, minlength=clients).astype(np.int64)))


def _offsets(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _dirichlet(
    labels: Labels, clients: int, alpha: float, seed: int, min_examples: int
) -> Partition:
    from flwr_datasets.partitioner import DirichletPartitioner

    if not 0 < alpha < float("inf"):
        raise ConfigError(f"partition dirichlet: alpha is {alpha}, expected more than 0")

    def draw(least: int) -> Partition:
        partitioner = DirichletPartitioner(
            num_partitions=clients,
            partition_by="label",
            alpha=float(alpha),
            min_partition_size=least,
            seed=seed,
        )
        return _assignment(partitioner, labels)

    try:
        return draw(min_examples)
    except ValueError as error:
        # It gave up after ten draws without saying which client fell short: the first draw does.
        _check_sizes(draw(0), "dirichlet", min_examples)
        raise ConfigError(f"partition dirichlet: {error}") from error


def _pathological(labels: Labels, clients: int, classes: int, seed: int) -> Partition:
    from flwr_datasets.partitioner import PathologicalPartitioner

    present = len(np.unique(labels))
    if not 1 <= classes <= present:
        raise ConfigError(
            f"partition pathological: {classes} classes a client, expected 1 to {present}"
        )
    partitioner = PathologicalPartitioner(
        num_partitions=clients,
        partition_by="label",
        num_classes_per_partition=classes,
        # Deals the classes in turn first, so that none stays unused when there are enough clients.
        class_assignment_mode="first-deterministic",
        seed=seed,
    )
    try:
        return _assignment(partitioner, labels)
    except ValueError as error:
        raise ConfigError(
            f"partition pathological: {clients} clients with {classes} classes each: {error}"
        ) from error


def _by_tier(labels: Labels, clients: int, tiers: int, seed: int) -> Partition:
    """Give tier t of T the first t/T of the classes, each dealt evenly among all that have it."""
    present = np.unique(labels)
    if not 1 <= tiers <= min(clients, len(present)):
        raise ConfigError(
            f"partition tiers: {tiers} tiers, expected 1 to {min(clients, len(present))}, as many "
            "as there are classes and clients at the most"
        )
    tier_of_client = np.arange(clients) * tiers // clients
    lowest_tier = np.arange(len(present)) * tiers // len(present)
    rng = np.random.default_rng(seed)
    rows: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label, lowest in zip(present, lowest_tier, strict=True):
        examples = rng.permutation(np.flatnonzero(labels == label))
        able = rng.permutation(np.flatnonzero(tier_of_client >= lowest))
        for client, part in zip(able, np.array_split(examples, len(able)), strict=True):
            rows[client].append(part)
    each = [np.concatenate(parts) for parts in rows]
    sizes = np.fromiter((len(row) for row in each), np.int64, clients)
    return Partition(np.concatenate(each).astype(np.int64), _offsets(sizes))


def _assignment(partitioner: Any, labels: Labels) -> Partition:
    """Run a partitioner on the labels alone and take its table of indices."""
    from datasets import Dataset

    partitioner.dataset = Dataset.from_dict({"label": labels})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its warnings on repeated draws: we check the result
        # Asking for this has the table made; reading it saves one Dataset a client.
        clients = int(partitioner.num_partitions)
    table = vars(partitioner)["_partition_id_to_indices"]
    rows = [np.asarray(table[client], np.int64) for client in range(clients)]
    sizes = np.fromiter((len(row) for row in rows), np.int64, clients)
    return Partition(np.concatenate(rows), _offsets(sizes))


def _from_lists(path: str | Path | None, examples: int, clients: int) -> Partition:
    if path is None:
        raise ConfigError("partition list: needs path, a JSON file with one list a client")
    try:
        lists = parse_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(lists, list) or not all(isinstance(row, list) for row in lists):
        raise DataError(f"{path}: expected a list of lists of indices")
    if len(lists) != clients:
        raise DataError(f"{path}: {len(lists)} lists, but the run has {clients} clients")
    owner: dict[int, int] = {}
    for client, row in enumerate(lists):
        for index in row:
            if type(index) is not int or not 0 <= index < examples:
                raise DataError(
                    f"{path}: client {client} has index {index!r:.60}, expected 0 to {examples - 1}"
                )
            if index in owner:
                raise DataError(
                    f"{path}: example {index} is given to client {owner[index]} and to "
                    f"client {client}; each example belongs to one client"
                )
            owner[index] = client
    sizes = np.fromiter((len(row) for row in lists), np.int64, clients)
    return Partition(np.fromiter(owner, np.int64, len(owner)), _offsets(sizes))
