"""Averages that outvote a few wrong clients: median and trimmed mean of every element.

For each element only the clients that hold it have a vote, so every element has its own number of
voters. Both averages are one rule: sort the voters' values, leave out as many at each end, take the
mean of the rest. The median leaves out all but the middle one or two. An element with one or two
voters has nobody to outvote a liar; `min_holders` keeps such elements as they were.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from nefl.nesting.corners import corner
from nefl.nesting.coverage import cells
from nefl.nesting.inside import trained_own
from nefl.nesting.spec import Family
from nefl.server.check import check_update
from nefl.state import ClientUpdate, ServerState, Tensors

BALLOT = 1 << 18
"""Values that are sorted at once: few enough to stay in a core's cache meanwhile."""


def median_leaves(voters: int) -> int:
    """Return how many of so many voters a median leaves out at each end."""
    return (voters - 1) // 2


def trimming(share: float) -> Callable[[int], int]:
    """Return how many of so many voters a trimmed mean leaves out at each end."""
    # Rounded up: one of four voters must go if a fifth of them may be wrong.
    return lambda voters: min(-int(-share * voters // 1), (voters - 1) // 2)


class RobustAggregate:
    """Keeps a round's updates, then lets the holders of each element vote.

    Args:
        state: the state that the clients of this round started from.
        family: the family it belongs to.
        left_out: how many of so many voters are left out at each end.
        min_holders: voters that an element needs to change.
    """

    def __init__(
        self,
        state: ServerState,
        family: Family,
        left_out: Callable[[int], int],
        *,
        min_holders: int = 1,
    ) -> None:
        self._state = state
        self._family = family
        self._left_out = left_out
        self._min_holders = min_holders
        self._updates: dict[int, tuple[int, dict[str, Tensor]]] = {}

    def add(self, update: ClientUpdate) -> None:
        """Keep a copy of an update, or refuse it.

        Raises:
            UpdateError: naming the client, the tensor and the reason.
        """
        task = update.task
        round_number = self._state.round_number + 1
        check_update(update, self._family, round_number, counted=self._updates)
        copies = {name: tensor.detach().cpu().clone() for name, tensor in update.trained.items()}
        self._updates[task.client] = task.submodel, copies

    @torch.no_grad()
    def finish(self) -> ServerState:
        """Return the state after the round."""
        ballots = _Ballots(self._left_out, self._min_holders)
        shared = {
            name: ballots.put(old, [t[name] for _, t in self._updates.values() if name in t])
            for name, old in self._state.shared.items()
        }
        own = []
        for number, mine in enumerate(self._state.per_submodel, start=1):
            equals = self._updates_of(number)
            own.append(
                {name: ballots.put(old, [t[name] for t in equals]) for name, old in mine.items()}
            )
        ballots.count()
        groups = self._state.shared, *self._state.per_submodel
        device = next(tensor.device for group in groups for tensor in group.values())
        return ServerState(self._state.round_number + 1, shared, tuple(own)).to(device)

    def _updates_of(self, number: int) -> list[Tensors]:
        """Return what trained a submodel's own tensors, within larger ones too."""
        found = (
            trained_own(tensors, self._state, self._family, submodel)
            for submodel, tensors in self._updates.values()
        )
        return [own[number] for own in found if number in own]


Question = tuple[Tensor, list[Tensor]]
"""Elements that are to be decided, in place, and the values that each voter has for them."""


class _Ballots:
    """Gathers the elements of all tensors by how many vote on them, and lets them be voted on.

    Elements with as many voters are sorted together, whatever tensors they are of.
    """

    def __init__(self, left_out: Callable[[int], int], min_holders: int) -> None:
        self._left_out = left_out
        self._min_holders = min_holders
        self._questions: dict[tuple[int, torch.dtype], list[Question]] = {}

    def put(self, old: Tensor, votes: Sequence[Tensor]) -> Tensor:
        """Return a copy of a tensor, whose elements change when the votes are counted.

        Votes are corners of it. Where too few vote, the old value stays.
        """
        new = old.detach().cpu().clone(memory_format=torch.contiguous_format)
        if not new.is_floating_point():
            # Counters are no quantities: the largest is kept, as in the plain mean.
            for vote in votes:
                part = new[corner(vote.shape)]
                torch.maximum(part, vote, out=part)
            return new
        alike: dict[tuple[int, ...], list[Tensor]] = {}
        for vote in votes:
            alike.setdefault(tuple(vote.shape), []).append(vote)
        groups = list(alike.values())
        for cell in cells(tuple(new.shape), tuple(enumerate(alike))):
            voters = [vote[cell.box] for k in sorted(cell.holders) for vote in groups[k]]
            if len(voters) >= max(1, self._min_holders):
                questions = self._questions.setdefault((len(voters), new.dtype), [])
                questions += _in_pieces(new[cell.box], voters)
        return new

    def count(self) -> None:
        """Decide everything that was put."""
        for (voters, _), questions in self._questions.items():
            low = self._left_out(voters)
            waiting: list[Question] = []
            size = 0
            for question in questions:
                if waiting and (size + question[0].numel()) * voters > BALLOT:
                    _decide(waiting, voters, low)
                    waiting, size = [], 0
                waiting.append(question)
                size += question[0].numel()
            _decide(waiting, voters, low)


def _in_pieces(place: Tensor, votes: list[Tensor]) -> Iterator[Question]:
    """Cut a question by rows into some that a ballot has room for."""
    if place.ndim == 0:
        yield place, votes
        return
    rows = max(1, BALLOT * place.shape[0] // (place.numel() * len(votes)))
    for start in range(0, place.shape[0], rows):
        yield place[start : start + rows], [vote[start : start + rows] for vote in votes]


def _decide(questions: Sequence[Question], voters: int, low: int) -> None:
    """Write the mean of the middle votes, all but so many at each end, to where it belongs."""
    rows = [torch.cat([votes[v].reshape(-1) for _, votes in questions]) for v in range(voters)]
    spare = torch.empty_like(rows[0])
    for i, j, smaller, larger in comparisons(voters, low):
        if smaller:
            torch.minimum(rows[i], rows[j], out=spare)
        if larger:
            torch.maximum(rows[i], rows[j], out=rows[j])
        if smaller:
            rows[i], spare = spare, rows[i]
    total = torch.zeros(len(spare), dtype=torch.float64)
    for row in rows[low : voters - low]:
        total.add_(row.to(torch.float64))
    decided = total.div_(voters - 2 * low).to(spare.dtype)
    parts = torch.split(decided, [place.numel() for place, _ in questions])
    for (place, _), part in zip(questions, parts, strict=True):
        place.copy_(part.view(place.shape))


@lru_cache(maxsize=256)
def comparisons(voters: int, low: int) -> tuple[tuple[int, int, bool, bool], ...]:
    """Return what to compare, in turn, so that the middle ranks come to stand at their places.

    Batcher's merge exchange (Knuth, The Art of Computer Programming 3, 5.2.2, Algorithm M), without
    what only the ranks at both ends need: whole rows of elements are compared at once.

    Args:
        voters: how many values each element has.
        low: how many ranks at each end nobody asks for.

    Returns:
        Two places, the first before the second; whether the smaller value is needed at the first,
        and whether the larger one is needed at the second.
    """
    every: list[tuple[int, int]] = []
    highest = 1 << max(0, (voters - 1).bit_length() - 1)
    p = highest if voters > 1 else 0
    while p:
        q, r, d = highest, 0, p
        while True:
            every += [(i, i + d) for i in range(voters - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    needed = set(range(low, voters - low))
    kept = []
    for i, j in reversed(every):
        if i in needed or j in needed:
            kept.append((i, j, i in needed, j in needed))
            needed |= {i, j}
    return tuple(reversed(kept))
