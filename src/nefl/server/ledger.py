"""What the server remembers of its clients: who keeps failing, and who has long not been heard.

It is part of a run's state, so that a run that goes on draws the same cohorts. A client that fails
is passed over for some rounds, twice as many with every further failure in a row, up to a bound: it
costs little while it is broken, and is taken back once it is mended.
"""

from collections.abc import Collection, Sequence

import numpy as np
import torch

from nefl.config import ClientsConfig
from nefl.state import Tensors

FAILED, UNTIL, HEARD = "failed", "until", "heard"
"""Failures in a row; the last round that it is passed over in; the last that its update came in."""

Ages = np.ndarray[tuple[int], np.dtype[np.float64]]


def open_ledger(ledger: Tensors, clients: ClientsConfig) -> Tensors:
    """Return a run's ledger, a new one where it has none; an empty one if it keeps none."""
    if not clients.keeps_ledger:
        return {}
    fresh = {name: torch.zeros(clients.count, dtype=torch.int64) for name in (FAILED, UNTIL, HEARD)}
    return ledger or fresh


def note_round(
    ledger: Tensors,
    clients: ClientsConfig,
    round_number: int,
    *,
    heard: Collection[int],
    failed: Collection[int],
) -> Tensors:
    """Return the ledger after a round, or after a try of it.

    Args:
        ledger: the ledger before.
        clients: how long those who fail are passed over.
        round_number: the round.
        heard: whose updates came.
        failed: who failed; not those who only came too late.
    """
    if not ledger:
        return ledger
    after = {name: tensor.clone() for name, tensor in ledger.items()}
    for client in heard:
        after[FAILED][client] = 0
        after[UNTIL][client] = 0
        after[HEARD][client] = round_number
    for client in failed:
        times = int(after[FAILED][client]) + 1
        pause = min(clients.pause * 2 ** min(times - 1, 31), clients.longest_pause)
        after[FAILED][client] = times
        after[UNTIL][client] = round_number + pause if clients.pause else 0
    return after


def ready(
    pool: Sequence[int],
    ledger: Tensors,
    round_number: int,
    *,
    fewest: int,
    returned: Collection[int] = (),
) -> Sequence[int]:
    """Return who may be drawn in a round: those who are not passed over.

    Args:
        pool: who is there, in rising order.
        ledger: what is remembered of them.
        round_number: the round.
        fewest: how many have to be left; where they are not, those are taken whose time is up
            first.
        returned: who came back after a restart, and is taken at once.
    """
    until = ledger[UNTIL].tolist()
    left = [client for client in pool if until[client] < round_number or client in returned]
    if len(left) < len(pool) and len(left) < fewest:
        there = set(left)
        others = sorted((c for c in pool if c not in there), key=lambda c: (until[c], c))
        left = sorted(left + others[: fewest - len(left)])
    return left


def ages(pool: Sequence[int], ledger: Tensors, round_number: int) -> Ages:
    """Return for how many rounds each client has not been heard."""
    last = ledger[HEARD].numpy()[np.asarray(pool, np.int64)]
    rounds: Ages = np.maximum(1.0, round_number - last)
    return rounds
