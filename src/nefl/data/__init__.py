"""Data sets, their division among clients, and augmentation.

Each part is imported when it is asked for: to look into the catalogue, no torch is loaded.
"""

from typing import TYPE_CHECKING

from nefl.lazy import lazy_names

if TYPE_CHECKING:
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

_HOMES = {
    "DATASETS": "nefl.data.catalog",
    "PARTITIONS": "nefl.data.partition",
    "POLICIES": "nefl.data.augment",
    "BatchTransform": "nefl.data.augment",
    "Columns": "nefl.data.columns",
    "Dataset": "nefl.data.columns",
    "DatasetInfo": "nefl.data.catalog",
    "Examples": "nefl.data.columns",
    "Partition": "nefl.data.partition",
    "Policy": "nefl.data.augment",
    "Split": "nefl.data.arrays",
    "Subset": "nefl.data.subsets",
    "Transform": "nefl.data.augment",
    "choose_part": "nefl.data.subsets",
    "draw_label_distribution": "nefl.data.picture",
    "find_dataset": "nefl.data.datasets",
    "load_dataset": "nefl.data.datasets",
    "make_transform": "nefl.data.augment",
    "open_cached": "nefl.data.cache",
    "partition_clients": "nefl.data.partition",
}
"""The module that each name lives in."""

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
