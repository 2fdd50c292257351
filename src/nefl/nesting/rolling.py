"""Rolling windows (FedRolex): each round other channels come first.

A window of channels is the leading corner of the rolled tensor. So the whole state is rolled by
one channel before a round, and everything else stays as it is: corners, averages, checkpoints.
Channels that belong together sit at the same place in every tensor, so rolling them all changes
their order, and nothing that the full model computes.

Every channel comes into every window in turn. Of a tensor with two channel axes, which move in
step, a window below half the width never holds the pairs that are far apart: wider ones do.
"""

from dataclasses import replace

import torch

from nefl.errors import NestingError
from nefl.nesting.corners import extract
from nefl.nesting.frozen import load_learned
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family
from nefl.state import ServerState


def scaled_axes(family: Family, name: str) -> tuple[int, ...]:
    """Return the axes of a shared tensor on which some submodel holds less than all."""
    whole = family.global_layout[name].shape
    parts = (family.layout(k).get(name) for k in range(1, len(family) + 1))
    shapes = [part.shape for part in parts if part is not None]
    return tuple(
        axis for axis, size in enumerate(whole) if any(shape[axis] < size for shape in shapes)
    )


def check_rolling(family: Family, signature: Signature) -> None:
    """Raise unless rolling changes nothing that the full model computes.

    It does where one place on a scaled axis is not one channel, as behind a flattened feature map.

    Raises:
        NestingError: if it does, or if submodels keep tensors for themselves.
    """
    state = family.initial_state(0)
    inputs = signature.noise(4)
    before, after = (_logits(family, each, inputs) for each in (state, roll(state, family)))
    if not torch.allclose(before, after, rtol=1e-3, atol=1e-3):
        raise NestingError(
            "rolling windows: rolled by one channel the full model computes something else; one "
            "place on a scaled axis must be one channel: pool before a linear layer instead of "
            "flattening, keep heads on an axis of their own, or take heterofl"
        )


def _logits(family: Family, state: ServerState, inputs: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):  # its first weights are not kept
        module = family.build(family.specs[-1]).eval()
    load_learned(module, extract(state, family, len(family)))
    with torch.no_grad():
        logits: torch.Tensor = module(inputs)
    return logits


def roll(state: ServerState, family: Family) -> ServerState:
    """Move every channel one place forward, the first to the end.

    Raises:
        NestingError: if submodels keep tensors for themselves, whose channels nobody could roll.
    """
    if any(state.per_submodel):
        raise NestingError(
            "rolling windows: submodels of this family keep tensors of their own; share all of "
            "them (per_submodel=()), as HeteroFL and FedRolex do"
        )

    def rolled(name: str, tensor: torch.Tensor) -> torch.Tensor:
        axes = scaled_axes(family, name)
        return tensor.roll((-1,) * len(axes), axes) if axes else tensor

    shared = {name: rolled(name, tensor) for name, tensor in state.shared.items()}
    # What a step remembers of a channel goes with it: `set/shared/name`.
    memory = {key: rolled(key.split("/", 2)[2], tensor) for key, tensor in state.memory.items()}
    return replace(state, shared=shared, memory=memory)
