"""Limits on how far an update may move the weights it started from.

A client's numbers can be finite and still ruin an average. How far an update moves is measured as
the root mean square over its elements: unlike a norm it does not grow with the submodel, so that
small and large submodels of one cohort compare.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from nefl.config import ServerConfig
from nefl.errors import UpdateError
from nefl.nesting.corners import extract
from nefl.nesting.spec import Family
from nefl.server.check import check_update
from nefl.state import ClientFailure, ClientUpdate, ServerState, Tensors

Result = ClientUpdate | ClientFailure


def within_limits(
    results: Iterator[Result], state: ServerState, family: Family, server: ServerConfig
) -> Iterator[Result]:
    """Pass results on; what moves too far is scaled down or becomes a failure.

    Only a limit by the cohort's median holds the updates back until all are there: it takes the
    memory of a cohort. Without limits results pass through as they come.
    """
    if server.norm_limit is None and server.clip_update is None:
        yield from results
        return
    measured: Iterator[tuple[Result, float]] = (_measure(r, state, family) for r in results)
    if server.norm_limit is not None:
        measured = _near_the_median(measured, server.norm_limit)
    for result, moved in measured:
        if isinstance(result, ClientUpdate) and server.clip_update is not None:
            yield _clipped(result, moved, server.clip_update, state, family)
        else:
            yield result


def movement(trained: Tensors, start: Tensors) -> float:
    """Return the root mean square of the differences, over all elements that are quantities."""
    total, count = 0.0, 0
    for name, tensor in trained.items():
        if tensor.is_floating_point() and tensor.numel():
            difference = tensor.to(torch.float64) - start[name].to(tensor.device, torch.float64)
            total += float(difference.square().sum())
            count += tensor.numel()
    return math.sqrt(total / count) if count else 0.0


def _measure(result: Result, state: ServerState, family: Family) -> tuple[Result, float]:
    if isinstance(result, ClientFailure):
        return result, 0.0
    try:
        check_update(result, family, state.round_number + 1)
    except UpdateError as error:
        return ClientFailure(result.task, str(error)), 0.0
    start = extract(state, family, result.task.submodel)
    return result, movement(result.trained, start)


def _near_the_median(
    measured: Iterator[tuple[Result, float]], limit: float
) -> Iterator[tuple[Result, float]]:
    kept: list[tuple[Result, float]] = []
    for result, moved in measured:
        # An engine may use an update's memory again: what waits is a copy.
        waiting = result if isinstance(result, ClientFailure) else _copy(result)
        kept.append((waiting, moved))
    typical = median([m for result, m in kept if isinstance(result, ClientUpdate)] or [0.0])
    for result, moved in kept:
        if isinstance(result, ClientUpdate) and moved > limit * typical:
            reason = (
                f"client {result.task.client}: its update moves the weights by {moved:.3g} (root "
                f"mean square), {moved / typical if typical else math.inf:.1f} times the cohort's "
                f"median; server.norm_limit is {limit:g}"
            )
            yield ClientFailure(result.task, reason), moved
        else:
            yield result, moved


def _copy(update: ClientUpdate) -> ClientUpdate:
    return replace(update, trained={name: t.clone() for name, t in update.trained.items()})


def _clipped(
    update: ClientUpdate, moved: float, limit: float, state: ServerState, family: Family
) -> ClientUpdate:
    if moved <= limit:
        return update
    start = extract(state, family, update.task.submodel)
    share = limit / moved

    def part_of_the_way(name: str, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        origin = start[name].to(tensor.device)
        return origin + (tensor - origin) * share

    shortened = {name: part_of_the_way(name, tensor) for name, tensor in update.trained.items()}
    return replace(update, trained=shortened)
