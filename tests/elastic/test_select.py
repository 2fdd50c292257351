"""Budgets are read with their units; a wavering budget does not make the choice flap."""

import pytest

from nefl.elastic.budget import Budget, Cost, parse_budget
from nefl.elastic.select import choose
from nefl.errors import ConfigError

COSTS = [Cost(n, 10 * n, 100 * n, n * 1e-3) for n in (1, 2, 3)]


def test_units() -> None:
    found = parse_budget("params<2M, macs <= 50M,memory<8MiB,latency<5ms")
    assert found == Budget(2e6, 50e6, 8 * 2**20, 0.005)
    assert parse_budget("latency<300us").latency == pytest.approx(3e-4)


@pytest.mark.parametrize(
    "text", ["", "params", "params>2M", "size<2", "latency<5", "macs<1M,macs<2M", "macs<1.2.3"]
)
def test_what_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="budget"):
        parse_budget(text)


def test_nothing_fits_below_zero() -> None:
    with pytest.raises(ConfigError, match="fits nothing"):
        parse_budget("macs<0")


def test_all_limits_count() -> None:
    assert choose(COSTS, Budget(params=3, latency=0.002)).submodel == 2
    assert choose(COSTS, Budget(params=0.5)).submodel == 1
    assert not choose(COSTS, Budget(params=0.5)).fits


def test_a_wavering_budget_switches_once() -> None:
    chosen, current = [], 2
    for turn in range(40):
        limit = 0.003 * (1.02 if turn % 2 else 0.98)  # around the cost of submodel 3
        current = choose(COSTS, Budget(latency=limit), current).submodel
        chosen.append(current)
    assert set(chosen) == {2}
    up = choose(COSTS, Budget(latency=0.0034), 2).submodel
    assert up == 3
    assert choose(COSTS, Budget(latency=0.00301), 3).submodel == 3
    assert choose(COSTS, Budget(latency=0.00299), 3).submodel == 2
