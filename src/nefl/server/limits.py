"""Limits on what one client may do to an average: how far its update moves, how much it weighs.

A client's numbers can be finite and still ruin an average. How far an update moves is measured as
the root mean square over its elements: unlike a norm it does not grow with the submodel, so that
small and large submodels of one cohort compare. Parameters and statistics are measured apart:
running means and variances move so much further than weights that beside them nobody would see
what the weights do.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from nefl.config import ServerConfig
from nefl.errors import UpdateError
from nefl.nesting.inside import trained_roles
from nefl.nesting.sets import extract_all
from nefl.nesting.spec import Family, Role
from nefl.server.check import check_update
from nefl.state import ClientFailure, ClientUpdate, ServerState

Result = ClientUpdate | ClientFailure
Note = Callable[[str], None]


def _to_nobody(_note: str) -> None: ...


def within_limits(
    results: Iterator[Result],
    state: ServerState,
    family: Family,
    server: ServerConfig,
    *,
    dealt: Sequence[int] = (),
    sends: Sequence[str] = (),
    note: Note = _to_nobody,
) -> Iterator[Result]:
    """Pass results on; what moves too far is scaled down or becomes a failure, and what claims
    too many examples weighs less.

    Only a limit by the cohort's median holds updates back until all are there: that takes the
    memory of a cohort. Without limits results pass through as they come.

    Args:
        results: what the engine brings.
        state: the state that the clients of this round started from.
        family: the family it belongs to.
        server: the limits.
        dealt: how many examples the server dealt each client; empty where it dealt none.
        sends: the sets that clients send beside their weights.
        note: told which claims were capped.
    """
    clips: dict[Role, float | None] = {
        "parameter": server.clip_update,
        "statistic": server.clip_statistics,
    }
    clipping = {role: limit for role, limit in clips.items() if limit is not None}
    by_examples = server.weighting == "examples"
    if server.norm_limit is None and not clipping and not by_examples:
        yield from results
        return
    results = (_checked(result, state, family, sends) for result in results)
    if by_examples:
        results = _weighing_no_more(results, server.examples_limit, dealt, note)
    if server.norm_limit is not None:
        results = _near_the_median(results, server.norm_limit, state, family)
    if clipping:
        results = (_clipped(result, clipping, state, family) for result in results)
    yield from results


def movements(update: ClientUpdate, state: ServerState, family: Family) -> dict[Role, float]:
    """Return how far an update moves the tensors of each role, its members' own among them.

    It is the root mean square of the differences, over all elements that are quantities.
    """
    start = extract_all(state, family, update.task.submodel, ())
    roles = trained_roles(family, update.task.submodel)
    total: dict[Role, float] = {}
    count: dict[Role, int] = {}
    for name, tensor in update.trained.items():
        if tensor.is_floating_point() and tensor.numel():
            role = roles[name]
            difference = tensor.to(torch.float64) - start[name].to(tensor.device, torch.float64)
            total[role] = total.get(role, 0.0) + float(difference.square().sum())
            count[role] = count.get(role, 0) + tensor.numel()
    return {role: math.sqrt(total[role] / count[role]) for role in total}


def _checked(result: Result, state: ServerState, family: Family, sends: Sequence[str]) -> Result:
    if isinstance(result, ClientFailure):
        return result
    try:
        check_update(result, family, state.round_number + 1, sends)
    except UpdateError as error:
        return ClientFailure(result.task, str(error))
    return result


def _weighing_no_more(
    results: Iterator[Result], limit: float, dealt: Sequence[int], note: Note
) -> Iterator[Result]:
    """Cap claims of examples that the server cannot know to be true.

    What it dealt out itself counts in full, at once and whatever the median: so a skewed partition
    gives the same sums wherever its clients train. From the first larger claim on, results wait.
    """
    claims: list[int] = []
    waiting: deque[Result] = deque()
    for result in results:
        known = True
        if isinstance(result, ClientUpdate):
            claims.append(result.examples)
            known = result.examples <= _dealt_to(result.task.client, dealt)
        if known and not waiting:
            yield result
        else:
            waiting.append(_kept(result))
    most = int(limit * median(claims or [0]))
    while waiting:
        result = waiting.popleft()
        if isinstance(result, ClientUpdate):
            fair = max(most, _dealt_to(result.task.client, dealt))
            if result.examples > fair:
                note(
                    f"client {result.task.client}: claims {result.examples} examples, which count "
                    f"as {fair}: {_why_fair(fair, most, limit)} (server.examples_limit)"
                )
                result = replace(result, examples=fair)
        yield result


def _why_fair(fair: int, most: int, limit: float) -> str:
    if fair == most:
        return f"{limit:g} times the cohort's median"
    return "that many it was dealt"


def _dealt_to(client: int, dealt: Sequence[int]) -> int:
    return dealt[client] if client < len(dealt) else 0


def _near_the_median(
    results: Iterator[Result], limit: float, state: ServerState, family: Family
) -> Iterator[Result]:
    """Turn updates into failures that move parameters or statistics much further than others."""
    waiting: deque[tuple[Result, Mapping[Role, float]]] = deque()
    seen: dict[Role, list[float]] = {}
    for result in results:
        moved: dict[Role, float] = {}
        if isinstance(result, ClientUpdate):
            moved = movements(result, state, family)
        for role, distance in moved.items():
            seen.setdefault(role, []).append(distance)
        waiting.append((_kept(result), moved))
    typical = {role: median(distances) for role, distances in seen.items()}
    while waiting:
        result, moved_by = waiting.popleft()
        far = next((r for r, distance in moved_by.items() if distance > limit * typical[r]), None)
        if far is None:
            yield result
            continue
        times = moved_by[far] / typical[far] if typical[far] else math.inf
        yield ClientFailure(
            result.task,
            f"client {result.task.client}: its update moves the {far}s by {moved_by[far]:.3g} "
            f"(root mean square), {times:.1f} times the cohort's median; server.norm_limit is "
            f"{limit:g}",
        )


def _kept(result: Result) -> Result:
    """Return a result that may wait: an engine may use an update's memory again."""
    if isinstance(result, ClientFailure):
        return result
    trained, *sets = (
        {name: tensor.clone() for name, tensor in tensors.items()}
        for tensors in (result.trained, *result.sent.values())
    )
    return replace(result, trained=trained, sent=dict(zip(result.sent, sets, strict=True)))


def _clipped(
    result: Result, limits: Mapping[Role, float], state: ServerState, family: Family
) -> Result:
    """Return an update that goes part of the way where a role's tensors went too far."""
    if isinstance(result, ClientFailure):
        return result
    moved = movements(result, state, family)
    shares = {
        role: limit / moved[role]
        for role, limit in limits.items()
        if role in moved and moved[role] > limit
    }
    if not shares:
        return result
    start = extract_all(state, family, result.task.submodel, ())
    roles = trained_roles(family, result.task.submodel)

    def part_of_the_way(name: str, tensor: Tensor) -> Tensor:
        share = shares.get(roles[name])
        if share is None or not tensor.is_floating_point():
            return tensor
        origin = start[name].to(tensor.device)
        return origin + (tensor - origin) * share

    shortened = {name: part_of_the_way(name, tensor) for name, tensor in result.trained.items()}
    return replace(result, trained=shortened)
