"""A client's own examples, to be learned as all clients' are."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nefl.config import RunConfig
from nefl.data.arrays import IMAGE
from nefl.data.class_names import numbered_classes, with_classes
from nefl.data.datasets import load_dataset
from nefl.errors import ConfigError, DataError
from nefl.tasks.finding import IMAGES, learned, task_of
from nefl.tasks.task import Task


def own_examples(
    config: RunConfig,
    path: Path,
    cache: str | Path,
    facts: Mapping[str, Any],
    class_names: Sequence[str],
) -> Task:
    """Return a run's task over a client's own images, labelled and normalised as all clients' are.

    Args:
        config: the run.
        path: a `.npz` file, or a folder of images by class.
        cache: the folder for decoded data.
        facts: what the run's task knows of its examples.
        class_names: the run's classes, position = label.

    Raises:
        DataError: if they have another shape, or classes that the run does not have.
        ConfigError: if the run learns something else than images.
    """
    if learned(config) != IMAGES:
        raise ConfigError(
            f"own-data {path}: a node may have images of its own; of task {config.task} it takes "
            "its part of the run's data set"
        )
    kind = "images" if path.is_dir() else "arrays"
    data = load_dataset(kind, root=path, cache=cache, verify=False)
    found, wanted = tuple(data.train[IMAGE].shape[1:]), tuple(facts["image_shape"])
    if found != wanted:
        raise DataError(f"{path}: images are {found}, the run's are {wanted} (C, H, W)")
    names = tuple(data.facts["class_names"])
    unnamed = names == numbered_classes(len(names))
    if not (kind == "arrays" and unnamed and len(names) <= len(class_names)):
        data = with_classes(data, class_names, str(path))
    # Without names of their own, the labels of arrays are the run's.
    known = {"class_names": list(class_names), "mean": facts["mean"], "std": facts["std"]}
    return task_of(config, replace(data, name=config.data.name, facts=known))
