"""Which runs can train several clients of a submodel at once, tried out before they start."""

from dataclasses import replace

import numpy as np
import torch

from nefl.client.objective import Objective
from nefl.client.together import train_together
from nefl.client.training import LocalTraining
from nefl.config import RunConfig
from nefl.errors import ConfigError
from nefl.methods import method_of
from nefl.nesting.spec import Family
from nefl.own_code import describe
from nefl.state import TrainTask
from nefl.tasks.task import Task, rows_of

EXAMPLES = 2
"""How many each client has in the trial; batch norms cannot take one alone."""


def check_together(config: RunConfig, family: Family, task: Task) -> None:
    """Refuse to train clients at once where it cannot be, or would not be the same.

    Raises:
        ConfigError: naming the reason and the remedy.
    """
    if config.engine.together == 1:
        return
    method, local = method_of(config.model), config.local
    exits = hasattr(family.meta_module(len(family)), "forward_exits")
    refused = {
        f"model.method {config.model.method!r} follows {type(method.objective).__name__}, and "
        "stacks follow the task's loss alone": type(method.objective) is not Objective,
        f"model.method {config.model.method!r} trains members inside others": any(family.within),
        "local.compile: stacked steps are not compiled": local.compile,
        f"local.precision {local.precision!r}: stacks are in float32": (
            local.precision in ("bf16", "fp16")
        ),
        "engine.client 'executorch': programs train one client": config.engine.client != "torch",
        "local.weight_decay: exits without a part in the loss would decay": (
            exits and local.weight_decay > 0
        ),
    }
    for reason, applies in refused.items():
        if applies:
            raise ConfigError(f"engine.together is {config.engine.together}: {reason}; set it to 1")
    _try_stack(config, family, task)


def _try_stack(config: RunConfig, family: Family, task: Task) -> None:
    """Train the full model for two clients at once, a step each."""
    rows = rows_of(
        task.visible(task.train), np.arange(EXAMPLES, dtype=np.int64) % task.train_examples
    )
    local = replace(config.local, epochs=1, batch_size=EXAMPLES)
    how = LocalTraining(local, config.schedule, config.rounds, config.seed, None, task)
    tasks = [TrainTask(1, client, len(family)) for client in range(2)]
    with torch.random.fork_rng(devices=[]):
        model = family.build(family.specs[-1])
        try:
            train_together(tasks, model, [rows, rows], how)
        except Exception as error:  # whatever a model or loss does that stacks cannot
            raise ConfigError(
                f"engine.together is {config.engine.together}: a stack of {config.model.name} "
                f"cannot be trained ({describe(error)}); random numbers in a model (dropout), "
                "values that leave it (.item()) and branches on them have no stack; set it to 1"
            ) from error
