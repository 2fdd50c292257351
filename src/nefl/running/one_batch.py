"""A place with one client that has one batch of a run's first examples: to time steps on."""

from dataclasses import replace

import numpy as np

from nefl.data import Partition
from nefl.engines.devices import pick_device
from nefl.engines.site import Site
from nefl.running.assembly import Setting


def one_batch_site(setting: Setting, batch: int, *, compiled: bool = False) -> Site:
    """Return such a place; client 0 trains one step.

    Args:
        setting: the run.
        batch: the examples of the batch.
        compiled: whether steps are compiled.
    """
    config, task = setting.config, setting.task
    rows = np.resize(np.arange(task.train_examples), batch)
    some = {name: column[rows] for name, column in task.train.items()}
    few = replace(task, train=some, test=some, folder=None)
    one_step = replace(
        config,
        data=replace(config.data, train=None, test=None),
        local=replace(config.local, epochs=1, batch_size=batch, compile=compiled),
        # Programs of devices take minutes to make: what is timed is torch.
        engine=replace(config.engine, client="torch", client_share=1.0, programs=None),
    )
    everything = Partition(np.arange(batch, dtype=np.int64), np.array([0, batch], dtype=np.int64))
    device = pick_device(config.engine.devices[0])
    return Site(one_step, setting.family, few, everything, device)
