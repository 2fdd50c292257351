"""NeFedAvg: every element becomes the mean over exactly the clients that trained it.

Updates are added as they arrive into one set of sums, whatever the number of clients. Divisors
differ within a tensor (small submodels never reach the outer channels), but they need no memory:
the weight that each submodel gathered and the corners' shapes give them when the round ends. So
sums and weights are all that an aggregator between clients and server has to pass on.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from nefl.nesting.corners import corner
from nefl.nesting.inside import trained_own
from nefl.nesting.spec import Family, Layout, TensorInfo
from nefl.server.check import check_sums, check_update
from nefl.state import ClientUpdate, ServerState, Sums, Tensors

Weighting = Literal["equal", "examples"]

GROUP = 16
"""Updates that are summed in float32 before their sum moves on to float64.

Adding float32 tensors in float32 is three times as fast as adding them in float64, and sixteen of
them lose at most sixteen roundings. Sums of groups lose nothing that matters in float64, so the
error of a mean stays near 1e-6 of the mean magnitude however many clients there are.
"""


class Aggregate:
    """The sums of one round; local to it, and the only thing in it that changes.

    Args:
        state: the state that the clients of this round started from.
        family: the family it belongs to.
        weighting: whether clients count equally (the paper's way) or by their examples.
    """

    def __init__(
        self, state: ServerState, family: Family, *, weighting: Weighting = "equal"
    ) -> None:
        self._state = state
        self._family = family
        self._weighting = weighting
        self._shared = _Sums(family.global_layout, state.shared)
        self._own: dict[int, _OwnSums] = {}
        self._weights = dict.fromkeys(range(1, len(family) + 1), 0)
        # Of what a submodel has for itself: who trained it within a larger one counts too.
        self._own_weights = dict(self._weights)
        self._heads, self._own_heads = dict(self._weights), dict(self._weights)
        self._clients: set[int] = set()

    @property
    def clients(self) -> int:
        """How many clients' updates were added so far; those merged are not among them."""
        return len(self._clients)

    def add(self, update: ClientUpdate) -> None:
        """Count an update, or refuse it and leave the sums as they were.

        Raises:
            UpdateError: naming the client, the tensor and the reason.
        """
        task = update.task
        round_number = self._state.round_number + 1
        check_update(update, self._family, round_number, counted=self._clients)
        weight = update.examples if self._weighting == "examples" else 1
        self._shared.add(task.submodel, update.trained, weight)
        self._weights[task.submodel] += weight
        self._heads[task.submodel] += 1
        own = trained_own(update.trained, self._state, self._family, task.submodel)
        for submodel, trained in own.items():
            self._own_sums(submodel).add(trained, weight)
            self._own_weights[submodel] += weight
            self._own_heads[submodel] += 1
        self._clients.add(task.client)

    def merge(self, sums: Sums) -> None:
        """Count what an aggregator has summed up, or refuse it and leave the sums as they were.

        Merging the same sums in the same order gives the same bits. No client may be in two of
        them: that cannot be seen here.

        Raises:
            UpdateError: naming the tensor or the weight at fault.
        """
        check_sums(sums, self._family, self._state.round_number + 1, self._weighting)
        self._shared.merge(sums.shared)
        for k, tensors in enumerate(sums.own, start=1):
            self._weights[k] += sums.weights[k - 1]
            self._heads[k] += sums.clients[k - 1]
            if sums.own_weights[k - 1]:
                self._own_sums(k).merge(tensors)
                self._own_weights[k] += sums.own_weights[k - 1]
                self._own_heads[k] += sums.own_clients[k - 1]

    def sums(self) -> Sums:
        """Return what was added and merged, to be passed on. Afterwards this object is spent."""
        return Sums(
            self._state.round_number + 1,
            self._weighting,
            tuple(self._weights.values()),
            tuple(self._own_weights.values()),
            tuple(self._heads.values()),
            tuple(self._own_heads.values()),
            self._shared.by_name(),
            tuple(self._own[k].by_name() if k in self._own else {} for k in self._weights),
        )

    def _own_sums(self, submodel: int) -> "_OwnSums":
        if submodel not in self._own:
            layout = self._family.layout(submodel)
            like = self._state.per_submodel[submodel - 1]
            self._own[submodel] = _OwnSums({name: layout[name] for name in like}, like)
        return self._own[submodel]

    def finish(self) -> ServerState:
        """Return the state after the round. Afterwards this object is spent."""
        shared = {
            name: self._shared.nested_mean(name, old, self._holders(name))
            for name, old in self._state.shared.items()
        }
        own = list(self._state.per_submodel)
        for submodel, sums in self._own.items():
            own[submodel - 1] = sums.means(self._own_weights[submodel])
        return ServerState(self._state.round_number + 1, shared, tuple(own))

    def _holders(self, name: str) -> list[tuple[tuple[int, ...], int]]:
        """Return the corner and the gathered weight of each trained submodel with that tensor."""
        return [
            (info.shape, weight)
            for k, weight in self._weights.items()
            if weight and (info := self._family.layout(k).get(name)) is not None
        ]


class _Sums:
    """Weighted sums of tensors in two levels, float32 groups within float64 totals.

    Integer tensors (`num_batches_tracked`) are no quantities to average: the largest is kept.
    """

    def __init__(self, layout: Layout, like: Tensors) -> None:
        self._layout = layout
        self._like = like
        self._partial: dict[str, Tensor] = {}
        self._total: dict[str, Tensor] = {}
        self._in_group = 0
        self._corners: dict[int, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}

    @torch.no_grad()
    def add(self, submodel: int, trained: Tensors, weight: int) -> None:
        """Add the tensors that belong here; the others are somebody else's."""
        if self._in_group == GROUP:
            self._close_group()
        begun: set[str] = set()
        if submodel not in self._corners:
            begun = {n for n in trained if n in self._layout and n not in self._partial}
            for name in begun:
                self._partial[name] = self._begin(name, trained[name], weight)
            self._corners[submodel] = self._cut_corners(trained)
        quantities, counters = self._corners[submodel]
        names = [name for name in quantities if name not in begun]
        if names:
            parts = [quantities[name] for name in names]
            tensors = [trained[name] for name in names]
            if tensors[0].device != parts[0].device:
                tensors = [tensor.to(parts[0].device) for tensor in tensors]
            torch._foreach_add_(parts, tensors, alpha=weight)
        if counters:
            news = [trained[name].to(part.device) for name, part in counters.items()]
            torch._foreach_maximum_(list(counters.values()), news)
        self._in_group += 1

    def _cut_corners(self, trained: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return views into the sums for one submodel: of quantities, and of counters."""
        quantities: dict[str, Tensor] = {}
        counters: dict[str, Tensor] = {}
        for name, tensor in trained.items():
            if name in self._layout:
                part = self._partial[name][corner(tensor.shape)]
                (quantities if part.is_floating_point() else counters)[name] = part
        return quantities, counters

    def _begin(self, name: str, tensor: Tensor, weight: int) -> Tensor:
        """Return the sum that starts with this tensor, 0 where it does not reach."""
        info, device = self._layout[name], self._like[name].device
        dtype = torch.float32 if info.dtype in (torch.float16, torch.bfloat16) else info.dtype
        part = tensor.to(device, dtype, copy=True, memory_format=torch.contiguous_format)
        if weight != 1 and dtype.is_floating_point:
            part.mul_(weight)
        if part.shape == info.shape:
            return part
        whole = torch.zeros(info.shape, dtype=dtype, device=device)
        whole[corner(part.shape)].copy_(part)
        return whole

    def _close_group(self) -> None:
        for name, part in self._partial.items():
            if part.is_floating_point():
                if name in self._total:
                    self._total[name].add_(part)
                else:
                    self._total[name] = part.to(torch.float64, copy=True)
                part.zero_()
        self._in_group = 0

    @torch.no_grad()
    def merge(self, sums: Tensors) -> None:
        """Add sums of others to the totals, and keep the larger counters."""
        if self._in_group:
            self._close_group()
        for name, theirs in sums.items():
            tensor = theirs.to(self._like[name].device)
            place = self._total if tensor.is_floating_point() else self._partial
            if name not in place:
                wide = torch.float64 if tensor.is_floating_point() else tensor.dtype
                place[name] = tensor.to(wide, copy=True)
            elif tensor.is_floating_point():
                place[name].add_(tensor)
            else:
                torch.maximum(place[name], tensor, out=place[name])

    def by_name(self) -> dict[str, Tensor]:
        """Return all sums. Their memory is this object's."""
        names = [name for name in self._like if name in self._partial or name in self._total]
        return {name: self._sum(name) for name in names}

    def nested_mean(
        self, name: str, old: Tensor, holders: Sequence[tuple[tuple[int, ...], int]]
    ) -> Tensor:
        """Divide each element by the weight of its holders; without holders it stays as it was."""
        if name not in self._partial and name not in self._total:
            return old
        total = self._sum(name)
        if total.is_floating_point():
            divide_by_coverage(total, old, holders)
        else:
            torch.maximum(total, old, out=total)  # outside the corners too, counters only grow
        return total.to(old.dtype)

    def _sum(self, name: str) -> Tensor:
        """Return the sum over all groups. Its memory becomes the result's."""
        if name not in self._total:
            return self._partial[name]
        total = self._total[name]
        return total.add_(self._partial[name]) if name in self._partial else total


class _OwnSums:
    """Sums of what a submodel has for itself: dozens of small tensors, end to end in one of a type.

    A call costs more than the work on a norm's few numbers.
    """

    def __init__(self, layout: Layout, like: Tensors) -> None:
        self._layout = layout
        self._kinds = {str(info.dtype): info.dtype for info in layout.values()}
        self._names: dict[str, list[str]] = {kind: [] for kind in self._kinds}
        for name, info in layout.items():
            self._names[str(info.dtype)].append(name)
        whole = {
            kind: TensorInfo((sum(layout[name].numel for name in names),), self._kinds[kind])
            for kind, names in self._names.items()
        }
        self._sums = _Sums(whole, {kind: like[names[0]] for kind, names in self._names.items()})

    def add(self, trained: Tensors, weight: int) -> None:
        """Add the tensors that belong here; the others are somebody else's."""
        self._sums.add(0, self._end_to_end(trained), weight)

    def merge(self, sums: Tensors) -> None:
        """Add sums of others to the totals, and keep the larger counters."""
        self._sums.merge(self._end_to_end(sums))

    def by_name(self) -> dict[str, Tensor]:
        """Return all sums. Their memory is this object's."""
        return self._apart(self._sums.by_name())

    def means(self, weight: int) -> dict[str, Tensor]:
        """Return the means of tensors that every client held whole."""
        found = {}
        for kind, total in self._sums.by_name().items():
            if total.is_floating_point() and weight != 1:
                total.div_(weight)
            found[kind] = total.to(self._kinds[kind])
        return self._apart(found)

    @torch.no_grad()
    def _end_to_end(self, tensors: Tensors) -> dict[str, Tensor]:
        return {
            kind: torch.cat([_flat(tensors[name]) for name in names])
            for kind, names in self._names.items()
        }

    def _apart(self, whole: Tensors) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for kind, names in self._names.items():
            parts = torch.split(whole[kind], [self._layout[name].numel for name in names])
            for name, part in zip(names, parts, strict=True):
                shape = self._layout[name].shape
                found[name] = part if len(shape) == 1 else part.view(shape)
        return {name: found[name] for name in self._layout}


def _flat(tensor: Tensor) -> Tensor:
    """Return a tensor's values one after another; most small ones lie so already."""
    return tensor if tensor.ndim == 1 else tensor.reshape(-1)


def divide_by_coverage(
    total: Tensor, old: Tensor, holders: Sequence[tuple[tuple[int, ...], int]]
) -> None:
    """Turn sums into means in place, given the corner and the weight of every holder.

    Rows of a tensor fall into a few bands with the same holders, and within a band the divisor is
    one vector for all rows: that keeps the division one contiguous pass.
    """
    if total.ndim == 0:
        total.div_(sum(weight for _, weight in holders))
        return
    for start, stop, coverage, everywhere in _bands(
        tuple(total.shape), tuple(holders), total.dtype, total.device
    ):
        rows = total[start:stop].view(stop - start, -1)
        if everywhere:
            rows.div_(coverage)
        else:
            old_rows = old[start:stop].reshape(rows.shape).to(rows)
            rows.copy_(torch.where(coverage > 0, rows / coverage.clamp(min=1), old_rows))


Holders = tuple[tuple[tuple[int, ...], int], ...]
"""The corner and the weight of each holder."""


@lru_cache(maxsize=256)  # many tensors of a network have the same shape and holders
def _bands(
    shape: tuple[int, ...], holders: Holders, dtype: torch.dtype, device: torch.device
) -> list[tuple[int, int, Tensor, bool]]:
    """Return the bands of rows with the same holders: where each starts and stops, the weight that
    its elements gathered, and whether that is above 0 everywhere.
    """
    edges = sorted({0, shape[0], *(cut[0] for cut, _ in holders)})
    found = []
    for start, stop in pairwise(edges):
        reaching = tuple((cut[1:], weight) for cut, weight in holders if cut[0] >= stop)
        coverage = _row_coverage(shape[1:], reaching, dtype).to(device)
        found.append((start, stop, coverage, bool(coverage.all())))
    return found


def _row_coverage(shape: tuple[int, ...], holders: Holders, dtype: torch.dtype) -> Tensor:
    """Return the weight that each element of a flat row gathered, or one number for all."""
    cut_axes = [any(cut[axis] < size for cut, _ in holders) for axis, size in enumerate(shape)]
    # NumPy, since these arrays are small and a call costs a tenth of torch's.
    coverage = np.zeros([size if cut else 1 for size, cut in zip(shape, cut_axes, strict=True)])
    for cut, weight in holders:
        coverage[corner(cut)] += weight
    flat = torch.from_numpy(coverage).to(dtype)
    return flat.expand(shape).reshape(-1) if any(cut_axes) else flat.view(1)
