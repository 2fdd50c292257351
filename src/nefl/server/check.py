"""The check of a client's update: only what its task asked for may be averaged."""

from collections.abc import Mapping

import torch
from torch import Tensor

from nefl.errors import UpdateError
from nefl.nesting.spec import Family
from nefl.state import ClientUpdate, ServerState, Tensors, TrainTask

MAX_EXAMPLES = 10**9
"""No client has more examples than this; a larger claim is a mistake or an attack."""

SMALL = 1 << 16
"""Elements below which tensors are probed together: the calls would cost more than the work."""


def check_update(update: ClientUpdate, family: Family, round_number: int) -> None:
    """Refuse an update that is not exactly what its task asked for.

    Raises:
        UpdateError: naming the client, the tensor and the reason.
    """
    task = update.task
    _check_numbers(task)
    who = f"client {task.client}"
    if task.round_number != round_number:
        raise UpdateError(
            f"{who}: update is for round {task.round_number}, this is round {round_number}"
        )
    if not 1 <= task.submodel <= len(family):
        raise UpdateError(f"{who}: submodel {task.submodel}; there are 1 to {len(family)}")
    examples = update.examples
    if not _is_whole(examples) or not 0 < examples <= MAX_EXAMPLES:
        raise UpdateError(f"{who}: {examples!r:.40} examples; expected 1 to {MAX_EXAMPLES}")
    if not isinstance(update.trained, Mapping):
        raise UpdateError(f"{who}: brings a {type(update.trained).__name__}, not tensors by name")
    layout = family.layout(task.submodel)
    if update.trained.keys() != layout.keys():
        raise UpdateError(f"{who}: {_differing_names(update.trained, layout)}")
    for name, info in layout.items():
        tensor = update.trained[name]
        if not isinstance(tensor, Tensor):
            raise UpdateError(f"{who}: {name} is a {type(tensor).__name__}, not a tensor")
        # First: some that are not dense have no shape to ask for.
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
            raise UpdateError(f"{who}: {name} is not a dense tensor with values")
        if tuple(tensor.shape) != info.shape:
            raise UpdateError(f"{who}: {name} has shape {tuple(tensor.shape)}, not {info.shape}")
        if tensor.dtype != info.dtype:
            raise UpdateError(f"{who}: {name} has dtype {tensor.dtype}, not {info.dtype}")
    culprit = first_not_finite(update.trained)
    if culprit is not None:
        raise UpdateError(f"{who}: {culprit} has values that are not finite")


def _check_numbers(task: TrainTask) -> None:
    """Refuse what only equals a whole number: it would be a key, an index or a size later on."""
    if not _is_whole(task.client) or task.client < 0:
        raise UpdateError(f"a client's number is {task.client!r:.40}, expected 0 or more")
    for what, number in (("round", task.round_number), ("submodel", task.submodel)):
        if not _is_whole(number):
            raise UpdateError(
                f"client {task.client}: {what} is {number!r:.40}, expected a whole number"
            )


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _differing_names(trained: Tensors, layout: Mapping[str, object]) -> str:
    missing = [name for name in layout if name not in trained]
    extra = [str(name)[:80] for name in trained if name not in layout]
    parts = [
        f"{word} {', '.join(names[:3])}{' and more' if len(names) > 3 else ''}"
        for word, names in (("lacks", missing), ("has unexpected", extra))
        if names
    ]
    return " and ".join(parts)


def not_finite_in(state: ServerState) -> str | None:
    """Return which tensor of a state has an infinite or undefined value, if there is one.

    Finite updates can have an average that is not: two of 3e38 sum up to infinity.
    """
    owners = ["shared", *(f"submodel {k}'s" for k in range(1, len(state.per_submodel) + 1))]
    for owner, tensors in zip(owners, (state.shared, *state.per_submodel), strict=True):
        culprit = first_not_finite(tensors)
        if culprit is not None:
            return f"{owner} {culprit}"
    return None


def first_not_finite(tensors: Tensors) -> str | None:
    """Return the name of a tensor with an infinite or undefined value, if there is one.

    A finite norm proves that every value is finite, in one quick pass; one that is not may only
    have overflowed, and then the tensor is looked at closely.
    """
    names = [name for name, tensor in tensors.items() if tensor.is_floating_point()]
    small = [name for name in names if tensors[name].numel() < SMALL]
    probes: dict[str, Tensor] = {}
    if small:
        norms = torch._foreach_norm([tensors[name] for name in small])
        probes.update(zip(small, norms, strict=True))
    for name in names:
        if name not in probes:
            flat = tensors[name].detach().reshape(-1)
            probes[name] = torch.dot(flat, flat)
    if not probes or torch.isfinite(torch.stack([p.float() for p in probes.values()])).all():
        return None
    doubtful = (name for name, probe in probes.items() if not torch.isfinite(probe))
    return next((n for n in doubtful if not torch.isfinite(tensors[n]).all()), None)
