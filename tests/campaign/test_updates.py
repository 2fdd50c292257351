"""Malformed updates, a few hundred of them."""

import random
from collections import Counter

import pytest
import torch

from benchmarks.campaign import updates
from benchmarks.campaign.updates import FAMILY, MUTATIONS, Trial, expected, honest, run_mutants
from nefl.server.aggregate import Aggregate


def test_none_counts_none_crashes_and_sums_stay() -> None:
    found = run_mutants(0, 600)
    refused, well_formed = Counter(found["refused"]), Counter(found["well_formed"])
    assert refused.total() + well_formed.total() == 600
    assert refused.keys() >= {*MUTATIONS, "two of these", "message"}
    assert "| together | 600 |" in updates.table([found])


def test_the_oracle_knows_the_family() -> None:
    for submodel in (1, 2, 3):
        layout = {n: (i.shape, i.dtype) for n, i in FAMILY.layout(submodel).items()}
        assert layout == expected(submodel)


def test_a_check_that_lets_something_through_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nefl.server.aggregate.check_update", lambda *_, **__: None)
    draft = honest(7, 1, random.Random(0))
    draft.trained["fc.bias"] = torch.full((2,), torch.nan)
    with pytest.raises(AssertionError, match=f"{Aggregate.__name__} counted"):
        Trial(random.Random(0)).attack(draft, counted_already=False)
