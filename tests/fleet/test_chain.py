"""The choice of members that nest, against every choice that there is."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nefl.fleet.candidates import Candidates, size_score
from nefl.fleet.chain import Group, choose_chain
from nefl.fleet.costs import Costs


def grid(depth: int = 3, widths: int = 3) -> Candidates:
    """Return members of a model of two stages whose costs grow in all they have."""
    places = [
        (a, b, (w + 1) / widths)
        for w in range(widths)
        for a in range(1, depth + 1)
        for b in range(1, depth + 1)
    ]
    table = []
    for a, b, w in places:
        params, macs = w * w * (1 + a + 3 * b), w * w * (1 + 3 * a + b)
        table.append([params, macs, 3 * macs, w * (4 * a + b), params, params + w])
    counts = np.array([place[:2] for place in places])
    wide = np.array([place[2] for place in places])
    return Candidates(((1.0,) * depth,) * 2, counts, wide, Costs.of_table(np.array(table)))


MEMBERS = grid()
SCORE = size_score(MEMBERS)


def by_trying_all(groups: list[Group], members: int) -> float:
    """Return the best value of any choice that nests, has few members and fits."""
    best = -np.inf
    options = [[int(c) for c in np.flatnonzero(group.fits)] for group in groups]
    full = len(MEMBERS) - 1
    for chosen in product(*options):
        # A device that can train the full model does.
        forced = all(c == full for c, g in zip(chosen, groups, strict=True) if g.fits[full])
        if not forced or len({*chosen, full}) > members:
            continue
        if all(MEMBERS.inside(a)[b] or MEMBERS.inside(b)[a] for a in chosen for b in chosen):
            value = sum(g.share * np.log(SCORE[c]) for g, c in zip(groups, chosen, strict=True))
            best = max(best, value)
    return best


def group(number: int, share: float, memory: float, work: float) -> Group:
    costs = MEMBERS.costs
    return Group((number,), share, (costs.train_memory <= memory) & (costs.macs <= work))


LEAST = MEMBERS.costs[0]
MOST = MEMBERS.costs[-1]
limits = st.tuples(
    st.floats(0.1, 1.0),
    st.floats(float(LEAST.train_memory), float(MOST.train_memory)),
    st.floats(float(LEAST.macs), float(MOST.macs)),
)


@settings(max_examples=40)
@example([(1.0, 4.0, 2.0), (1.0, 4.0, 3.0), (1.0, 5.0, 2.0)], 4)  # what is best for one is no order
@given(st.lists(limits, min_size=1, max_size=3), st.integers(2, 4))
def test_the_chain_is_the_best_of_all(kinds: list[tuple[float, float, float]], most: int) -> None:
    groups = [group(i, *kind) for i, kind in enumerate(kinds)]
    chosen = choose_chain(MEMBERS, SCORE, groups, most)
    full = len(MEMBERS) - 1
    assert all(g.fits[chosen[i]] for i, g in enumerate(groups))
    assert len({*chosen.values(), full}) <= most
    order = sorted({*chosen.values()}, key=lambda c: MEMBERS.costs.params[c])
    assert all(MEMBERS.inside(b)[a] for a, b in pairwise(order))
    value = sum(g.share * np.log(SCORE[chosen[i]]) for i, g in enumerate(groups))
    if len(groups) < most:  # beyond that kinds are joined one by one, which is no search of all
        assert value == pytest.approx(by_trying_all(groups, most), abs=1e-9)


def test_kinds_that_lose_least_share_a_member() -> None:
    groups = [group(0, 1.0, 3.0, 3.0), group(1, 1.0, 3.4, 3.4), group(2, 1.0, 12.0, 12.0)]
    chosen = choose_chain(MEMBERS, SCORE, groups, 3)
    assert chosen[0] == chosen[1] != chosen[2]


def test_size_speaks_for_parameters_and_work_and_evenness() -> None:
    assert SCORE.argmax() == len(MEMBERS) - 1
    assert SCORE[-1] == 1
    costs = MEMBERS.costs
    by_hand = np.sqrt(costs.params * costs.macs / (costs.params[-1] * costs.macs[-1]))
    even = (MEMBERS.place.max(axis=1) - MEMBERS.place.min(axis=1)) == 0
    assert SCORE[even] == pytest.approx(by_hand[even])
    assert (SCORE[~even] < by_hand[~even]).all()
