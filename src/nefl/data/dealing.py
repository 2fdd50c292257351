"""Which examples each client of a run has: the subset it takes, dealt out by its partition."""

from nefl.config import RunConfig
from nefl.data.arrays import ImageDataset
from nefl.data.partition import Partition, partition_clients
from nefl.data.subsets import subset


def deal_examples(config: RunConfig, dataset: ImageDataset) -> tuple[Partition, int]:
    """Return the partition of a run, and how many test examples it takes.

    Raises:
        NeflError: if there are not enough examples for such a partition.
    """
    chosen = subset(dataset, config.data.train, config.data.test, config.seed)
    dealt = partition_clients(
        dataset.train.labels[chosen.train],
        config.clients.count,
        config.partition.kind,
        alpha=config.partition.alpha,
        classes_per_client=config.partition.classes_per_client,
        path=config.partition.file,
        seed=config.seed,
        min_examples=config.partition.min_examples,
    )
    return Partition(chosen.train[dealt.indices], dealt.offsets), len(chosen.test)
