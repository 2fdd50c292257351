"""A client's own examples, to be learned as all clients' are."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nefl.config.run import GIVEN, IMAGES, RunConfig
from nefl.data.arrays import IMAGE
from nefl.data.class_names import numbered_classes, with_classes
from nefl.data.columns import Columns, Dataset, Examples
from nefl.data.datasets import cache_examples, load_dataset
from nefl.data.own import load_npz
from nefl.data.readers import NEXT, SERIES, TABLE, TEXT, read_options
from nefl.data.series import SERIES as SERIES_COLUMN
from nefl.data.series import own_arrays
from nefl.data.tables import FEATURES, own_table
from nefl.data.texts import own_texts
from nefl.errors import ConfigError, DataError
from nefl.references import is_reference
from nefl.tasks.finding import learned, task_of
from nefl.tasks.task import Task


def own_examples(
    config: RunConfig,
    path: Path,
    cache: str | Path,
    facts: Mapping[str, Any],
    class_names: Sequence[str],
) -> Task:
    """Return a run's task over a client's own examples, encoded as all clients' are.

    Args:
        config: the run.
        path: for images, a `.npz` file or a folder by class; for tables, CSV, JSON lines or a
            `.npz` file; for series, a `.npz` file; for texts, JSON lines, or text files.
        cache: the folder for decoded data.
        facts: what the run's task knows of its examples.
        class_names: the run's classes, position = label.

    Raises:
        DataError: if they have another shape, or classes that the run does not have.
        ConfigError: if the run's task is the user's own, which alone knows its examples.
    """
    if is_reference(config.task) or config.task == GIVEN:
        raise ConfigError(
            f"own-data {path}: task {config.task} reads its examples itself; let its function look "
            "for the node's own files, and leave own-data out"
        )
    if learned(config) == IMAGES:
        return task_of(config, _own_images(config, path, cache, facts, class_names))
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; own-data names the node's own examples")
    columns = _own_columns(config, path, facts)
    few = {name: column[:1] for name, column in columns.items()}  # a node measures nothing
    data = cache_examples(f"own-{config.data.name}", Examples(columns, few), cache, verify=False)
    return task_of(config, replace(data, name=config.data.name, facts=dict(facts)))


def _own_columns(config: RunConfig, path: Path, facts: Mapping[str, Any]) -> Columns:
    what = learned(config)
    if what in (TEXT, NEXT):
        return own_texts(path, read_options(config.data.name, config.data.options), facts)
    if what == SERIES or path.suffix == ".npz":
        column = {SERIES: SERIES_COLUMN, TABLE: FEATURES}[what]
        return own_arrays(load_npz(path), str(path), column, facts)
    return own_table(path, facts)


def _own_images(
    config: RunConfig,
    path: Path,
    cache: str | Path,
    facts: Mapping[str, Any],
    class_names: Sequence[str],
) -> Dataset:
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
    return replace(data, name=config.data.name, facts=known)
