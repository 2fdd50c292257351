"""In what numbers a model computes: its products in fewer bits, everything else in float32."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtype of products, by the precision's name; of other precisions it is float32."""

FORWARD = ("forward", "forward_exits")
"""The methods of a model that objectives and evaluations call."""

FIRST_SCALE = 2.0**10
"""What losses are multiplied by at first with fp16. A client's first steps would be lost to a
larger one where gradients overflow, in every round anew."""


def compute_in(model: nn.Module, precision: str) -> nn.Module:
    """Let a model compute its outputs in a precision; they come out in float32.

    Its weights stay float32, and so do their gradients; norms take their statistics in float32.

    Args:
        model: it is changed in place.
        precision: `float32`, `tf32`, `bf16` or `fp16`.
    """
    dtype = DTYPES.get(precision)
    if dtype is not None:
        for name in FORWARD:
            if hasattr(model, name):
                setattr(model, name, _lowered(getattr(model, name), dtype))
    return model


def _lowered(forward: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
    def lowered(inputs: Tensor) -> Any:
        with torch.autocast(inputs.device.type, dtype=dtype):
            outputs = forward(inputs)
        return outputs.float() if isinstance(outputs, Tensor) else [out.float() for out in outputs]

    return lowered


def make_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Return what keeps small gradients from vanishing in fp16; with others it does nothing.

    It is fresh for every client in every round, as optimisers are.
    """
    return torch.amp.GradScaler(device.type, init_scale=FIRST_SCALE, enabled=precision == "fp16")
