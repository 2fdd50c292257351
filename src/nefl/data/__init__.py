"""Data sets, their division among clients, and augmentation."""

from nefl.data.arrays import Split
from nefl.data.augment import POLICIES, BatchTransform, Policy, Transform, make_transform
from nefl.data.cache import open_cached
from nefl.data.catalog import DATASETS, DatasetInfo
from nefl.data.columns import Columns, Dataset, Examples
from nefl.data.datasets import find_dataset, load_dataset
from nefl.data.partition import PARTITIONS, Partition, partition_clients
from nefl.data.picture import draw_label_distribution
from nefl.data.subsets import Subset, choose_part

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "POLICIES",
    "BatchTransform",
    "Columns",
    "Dataset",
    "DatasetInfo",
    "Examples",
    "Partition",
    "Policy",
    "Split",
    "Subset",
    "Transform",
    "choose_part",
    "draw_label_distribution",
    "find_dataset",
    "load_dataset",
    "make_transform",
    "open_cached",
    "partition_clients",
]
