"""Class names: what makes a label of one data set the same class as a label of another."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nefl.data.arrays import LABEL
from nefl.data.columns import Dataset
from nefl.data.subsets import Labels
from nefl.errors import DataError

_MOST_NAMED = 20  # names in a message


MAX_CLASSES = 100_000
"""Classes that labels without names may have; more are hardly classes."""


def numbered_classes(count: int) -> tuple[str, ...]:
    """Return the names of classes that have none: their numbers."""
    return tuple(map(str, range(count)))


def classes_up_to(largest: int, source: str) -> tuple[str, ...]:
    """Return the names of classes that have none, from the largest of their labels.

    Raises:
        DataError: if the source has too many.
    """
    if largest >= MAX_CLASSES:
        raise DataError(
            f"{source}: has label {largest}, expected less than {MAX_CLASSES}; number the "
            "classes from 0"
        )
    return numbered_classes(largest + 1)


def labels_by_name(found: Sequence[str], classes: Sequence[str], source: str) -> Labels:
    """Return the label of each class that was found; there may be fewer than there are.

    Args:
        found: class names.
        classes: all class names, position = label.
        source: the file or folder at fault if there is no such class.

    Raises:
        DataError: naming the classes that are not among them, or that share a name.
    """
    label_of = {name: label for label, name in enumerate(classes)}
    if len(label_of) < len(classes):
        twice = [name for label, name in enumerate(classes) if label_of[name] != label]
        raise DataError(f"{source}: several classes are called {_listed(twice)}; name them apart")
    unknown = [name for name in found if name not in label_of]
    if unknown:
        raise DataError(
            f"{source}: there is no class {_listed(unknown)}; rename or remove what is called so. "
            f"Classes are {_listed(classes)}"
        )
    return np.array([label_of[name] for name in found], np.int64)


def with_classes(dataset: Dataset, classes: Sequence[str], source: str) -> Dataset:
    """Return the same examples with the labels that their class names have among all classes.

    Raises:
        DataError: naming the classes that are not among them.
    """
    label = labels_by_name(dataset.facts["class_names"], classes, source)
    train, test = ({**part, LABEL: label[part[LABEL]]} for part in (dataset.train, dataset.test))
    facts = {**dataset.facts, "class_names": list(classes)}
    return replace(dataset, train=train, test=test, facts=facts)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(f"{name!r:.60}" for name in names[:_MOST_NAMED]) + more
