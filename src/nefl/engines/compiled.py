"""Submodels compiled by torch: full batches of training, with a cache that all processes share.

Only full batches are compiled, and only while training: every other size would be compiled for
itself, up to a limit of torch's beyond which it goes on without, in an order that depends on the
workers. So a client's results depend on its own batches alone.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nefl.files import default_cache

Options = dict[str, str | int | bool | Callable[..., Any]]

OPTIONS: Options = {
    # Mean first, then the mean of squared distances from it: vectors all the way. Otherwise norms
    # take both in one go, value by value, which costs more than reading twice.
    "cpp.use_two_step_variance_threshold": 1 << 30,
    # The calls from kernel to kernel are compiled too: a tenth of a small network's step.
    "cpp_wrapper": True,
}
"""What torch's compiler is told for CPUs besides its defaults."""

PLACE = "TORCHINDUCTOR_CACHE_DIR"
"""The variable by which torch is told where compiled code lies."""


def compile_full_batches(
    module: nn.Module,
    batch_size: int,
    family_size: int,
    memory_format: torch.memory_format = torch.channels_last,
) -> None:
    """Let a module compute training batches of one size with compiled code, from now on.

    Args:
        module: the module.
        batch_size: the size of a full batch.
        family_size: how many modules of its class are compiled in this process.
        memory_format: how its inputs lie in memory: the compiler would always have channels last,
            which wide networks are slower with.
    """
    prepare_compiler(2 * family_size)
    plain: Callable[..., Any] = module.forward
    options: Options = {}
    if next(module.parameters()).device.type == "cpu":
        options = {**OPTIONS, "layout_optimization": memory_format == torch.channels_last}
    compiled = torch.compile(plain, dynamic=False, options=options)

    def forward(inputs: Tensor, *others: Any, **named: Any) -> Any:
        full = module.training and len(inputs) == batch_size
        return (compiled if full else plain)(inputs, *others, **named)

    module.forward = forward


def prepare_compiler(modules: int) -> None:
    """Load torch's compiler, with its code in the cache, for so many modules of a class."""
    os.environ.setdefault(PLACE, str(default_cache() / "compiled"))
    from torch._dynamo import config as compiling  # loads the compiler

    # A class counts as one function, which may be compiled so many times.
    compiling.recompile_limit = max(compiling.recompile_limit, modules)
