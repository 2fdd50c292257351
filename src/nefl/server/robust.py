"""Averages that outvote a few wrong clients: median and trimmed mean of every element.

For each element only the clients that hold it have a vote, so every element has its own number of
voters. Both averages are one rule: sort the voters' values, leave out as many at each end, take the
mean of the rest. The median leaves out all but the middle one or two. An element with one or two
voters has nobody to outvote a liar; `min_holders` keeps such elements as they were.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nefl.nesting.corners import corner
from nefl.nesting.inside import trained_own
from nefl.nesting.spec import Family
from nefl.server.check import check_update
from nefl.state import ClientUpdate, ServerState, Tensors

CHUNK = 1 << 22
"""Values that are sorted at once: bounds the memory that a large tensor takes."""


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

    def finish(self) -> ServerState:
        """Return the state after the round."""
        shared = {
            name: self._vote(old, [t[name] for _, t in self._updates.values() if name in t])
            for name, old in self._state.shared.items()
        }
        own = []
        for number, mine in enumerate(self._state.per_submodel, start=1):
            equals = self._updates_of(number)
            own.append(
                {name: self._vote(old, [t[name] for t in equals]) for name, old in mine.items()}
            )
        return ServerState(self._state.round_number + 1, shared, tuple(own))

    def _updates_of(self, number: int) -> list[Tensors]:
        """Return what trained a submodel's own tensors, within larger ones too."""
        found = (
            trained_own(tensors, self._state, self._family, submodel)
            for submodel, tensors in self._updates.values()
        )
        return [own[number] for own in found if number in own]

    def _vote(self, old: Tensor, votes: Sequence[Tensor]) -> Tensor:
        if not votes:
            return old
        if not old.is_floating_point():
            # Counters are no quantities: the largest is kept, as in the plain mean.
            new = old.cpu().clone()
            for vote in votes:
                part = new[corner(vote.shape)]
                torch.maximum(part, vote, out=part)
            return new.to(old.device)
        before = old.cpu()
        if before.ndim == 0:
            flat = self._vote_rows(before.view(1), [vote.view(1) for vote in votes])
            return flat.view(()).to(old.device)
        new = torch.empty_like(before, memory_format=torch.contiguous_format)
        rows = max(1, CHUNK * before.shape[0] // max(1, before.numel() * len(votes)))
        for start in range(0, before.shape[0], rows):
            stop = min(start + rows, before.shape[0])
            new[start:stop] = self._vote_rows(
                before[start:stop], [vote[start:stop] for vote in votes if len(vote) > start]
            )
        return new.to(old.device)

    def _vote_rows(self, old: Tensor, votes: Sequence[Tensor]) -> Tensor:
        """Let votes, corners of these rows, decide; where too few vote the old value stays."""
        if not votes:
            return old
        # Who does not hold an element has no vote there: NaN, which sorts behind all numbers.
        ballot = torch.full((len(votes), *old.shape), torch.nan, dtype=torch.float64)
        voters = torch.zeros(old.shape, dtype=torch.int64)
        for place, vote in enumerate(votes):
            ballot[place][corner(vote.shape)] = vote.to(torch.float64)
            voters[corner(vote.shape)] += 1
        ballot = ballot.sort(dim=0).values
        table = torch.tensor([self._left_out(n) if n else 0 for n in range(len(votes) + 1)])
        low = table[voters]
        high = voters - low
        rank = torch.arange(len(votes)).view(-1, *[1] * old.ndim)
        counted = (rank >= low) & (rank < high)
        total = torch.where(counted, ballot, 0.0).sum(dim=0)
        enough = voters >= self._min_holders
        new = total / (high - low).clamp(min=1)
        return torch.where(enough & (voters > 0), new, old.to(torch.float64)).to(old.dtype)
