"""All of a run that can be checked without starting it."""

from pathlib import Path

import numpy as np

from nefl.config import RunConfig
from nefl.data import DATASETS, Columns, Dataset, DatasetInfo, find_dataset
from nefl.data.arrays import IMAGE, LABEL
from nefl.methods import method_of, trains_members
from nefl.models.pretrained import fit_weights, read_weights
from nefl.nesting.spec import Family
from nefl.running.assembly import Setting, arrange, assemble, check_devices
from nefl.running.small_first import with_small_first
from nefl.server.closing import check_clock
from nefl.tasks.finding import task_of


def check_run(config: RunConfig) -> tuple[Setting, tuple[str, ...]]:
    """Check all of a run that can be checked without starting it.

    Returns:
        What the run rests on, and what is missing though it does not forbid an estimate.

    Raises:
        NeflError: if the run could never start as it is.
    """
    notes = []
    check_clock(config)
    config = with_small_first(config)
    presence = find_dataset(
        config.data.name,
        root=config.data.root,
        cache=config.data.cache,
        options=config.data.options,
    )
    info = DATASETS.get(config.data.name)
    if presence == "cached" or info is None or info.rows is None or info.hub is None:
        setting = assemble(config)  # what comes with nefl, is decoded or is the user's own
    else:
        check_devices(config)
        setting = arrange(config, task_of(config, _stand_in(config.data.name, info, info.rows)))
        where = config.data.root or "the hub"
        notes.append(
            f"data: {config.data.name} is not decoded yet; it will be, from {where}"
            if presence == "here"
            else f"data: {config.data.name} is not here; it must come from {where}, or give its "
            f"folder as data.root ({info.wanted})"
        )
    if config.model.weights is not None:
        notes += _weights_notes(Path(config.model.weights), setting.family)
    objective = method_of(config.model).objective
    if setting.family.within and not trains_members(objective, setting.family, config.rounds):
        notes.append(
            f"members within: no step of {config.rounds} rounds trains any; give the run more "
            "rounds, or let them begin earlier (model.method_options.from_round)"
        )
    return setting, tuple(notes)


def _stand_in(name: str, info: DatasetInfo, rows: tuple[int, int]) -> Dataset:
    """Return a data set of the right size and shape without any storage, its classes even."""

    def split(count: int) -> Columns:
        images = np.broadcast_to(np.uint8(0), (count, *info.input_shape))
        return {IMAGE: images, LABEL: np.arange(count, dtype=np.int64) % info.classes}

    channels = info.input_shape[0]
    names = info.class_names or tuple(map(str, range(info.classes)))
    facts = {"class_names": names, "mean": (0.5,) * channels, "std": (0.25,) * channels}
    return Dataset(name, split(rows[0]), split(rows[1]), facts)


def _weights_notes(path: Path, family: Family) -> list[str]:
    if not path.exists():
        return [f"weights: {path} is not here; put the file there, or name one by model.weights"]
    anew = fit_weights(read_weights(path), family, str(path)).anew
    return [f"weights: all is taken over but {'; '.join(anew)}"] if anew else []
