"""Members within are charged for: work, memory, traffic."""

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from nefl.client.drift import ControlVariates
from nefl.client.objective import Objective
from nefl.client.within import Within
from nefl.config import WireConfig
from nefl.errors import ConfigError, OwnCodeError
from nefl.methods import make_family, priced
from nefl.methods.prices import together_of, work_of
from nefl.models.images import SMALL_IMAGES
from nefl.nesting.inside import train_within
from nefl.nesting.profile import profile_family
from nefl.wire.layouts import submodel_scales

FAMILY = make_family("resnet8", "nefl-w", ratios=(0.3, 0.6, 1.0))
ALONE = tuple(profile_family(FAMILY, SMALL_IMAGES, 8, 1))


def prices(rounds: int = 4, **options: Any) -> tuple[Any, ...]:
    objective = Within(**options)
    family = train_within(FAMILY, lambda k: objective.members(FAMILY, k))
    return priced(ALONE, family, objective, rounds, 1)


def test_without_members_nothing_changes() -> None:
    assert prices(which="own") == ALONE


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"which": "smallest"}, (1, 0, 1)),
        ({"which": "smallest", "every": 2}, (0.5, 0, 1)),
        ({"which": "smallest", "from_round": 4}, (0.25, 0, 1)),
        ({"which": "drawn"}, (0.5, 0.5, 1)),
        ({"which": "all"}, (1, 1, 1)),
        ({"which": "one"}, (1 / 3, 1 / 3, 1 / 3)),
        ({"which": "all", "every": 2, "trains": "own"}, (1 / 3, 1 / 3, 1)),
        ({"which": "one", "trains": "own"}, (2 / 9, 2 / 9, 1 / 3)),
    ],
)
def test_work_is_the_sum_over_what_a_step_runs(
    options: dict[str, Any], parts: tuple[float, ...]
) -> None:
    found = prices(**options)
    wanted = sum(part * row.train_macs for part, row in zip(parts, ALONE, strict=True))
    assert found[2].train_macs == pytest.approx(wanted, abs=1)
    assert found[0].train_macs == ALONE[0].train_macs, "nothing is inside the smallest"


@pytest.mark.parametrize(
    ("which", "beside"), [("all", (1, 2)), ("smallest", (1,)), ("drawn", (2,)), ("one", ())]
)
def test_memory_holds_the_activations_of_a_step_and_the_members_own_tensors(
    which: str, beside: tuple[int, ...]
) -> None:
    travels = (1,) if which == "smallest" else (1, 2)
    own = sum(FAMILY.layout(k)[name].nbytes for k in travels for name in FAMILY.own_names(k))
    more = sum(ALONE[k - 1].activation_bytes for k in beside) + 3 * own
    found = prices(which=which)[2]
    assert found.train_memory_bytes == ALONE[2].train_memory_bytes + more
    assert found.payload_bytes == ALONE[2].payload_bytes + own


def test_memory_is_that_of_the_costliest_kind_of_step() -> None:
    """The last member inside need not be the largest in memory."""
    heavy = 3 * max(row.activation_bytes for row in ALONE)
    rows = (ALONE[0], replace(ALONE[1], activation_bytes=heavy), ALONE[2])
    family = train_within(FAMILY, lambda k: tuple(range(1, k)))
    for objective, together in (
        (Within(which="one"), heavy),
        (Within(which="drawn"), heavy + rows[2].activation_bytes),
    ):
        found = priced(rows, family, objective, 1)[2]
        own = sum(FAMILY.layout(k)[name].nbytes for k in (1, 2) for name in FAMILY.own_names(k))
        more = found.train_memory_bytes - rows[2].train_memory_bytes
        assert more == together - rows[2].activation_bytes + 2 * own


class Odd(Objective):
    """Says of its costs what it is told to."""

    def __init__(self, said: Any) -> None:
        self.said = said

    def work(self, members: Any, submodel: int, round_number: int) -> Any:
        return self.said

    def at_once(self, members: Any, submodel: int) -> Any:
        return self.said


@pytest.mark.parametrize(
    "said", [{}, None, 3, {1: -1.0}, {1: float("nan")}, {4: 1.0}, {3: "often"}, {3: 0}]
)
def test_work_that_is_none_is_refused(said: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"work of .*test_prices.py, line \d+: returned .* for submodel 3 in"
    ):
        work_of(Odd(said), (1, 2), 3, 2)


@pytest.mark.parametrize("said", [(), None, 3, (1, 2), [()], [(3, 4)]])
def test_steps_that_hold_nobody_are_refused(said: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"at_once of .*, line \d+: returned .* for submodel 3; give"
    ):
        together_of(Odd(said), (1, 2), 3)


def test_costs_that_fail_are_the_users_own_error() -> None:
    class Failing(Odd):
        def work(self, members: Any, submodel: int, round_number: int) -> Any:
            return self.said["nothing"]

        def at_once(self, members: Any, submodel: int) -> Any:
            return self.said["nothing"]

    with pytest.raises(OwnCodeError, match=r"work of .*, line \d+ failed: KeyError"):
        work_of(Failing({}), (1, 2), 3, 2)
    with pytest.raises(OwnCodeError, match=r"at_once of .*, line \d+ failed: KeyError"):
        together_of(Failing({}), (1, 2), 3)


def test_both_ways_are_counted_in_their_formats() -> None:
    sent = priced(ALONE, FAMILY, ControlVariates(), 4, wire=WireConfig("bfloat16", "int8"))[2]
    roles = FAMILY.roles(3)
    parameters = sum(i.numel for n, i in FAMILY.layout(3).items() if roles[n] == "parameter")
    small = parameters - 3  # of its three blocks the step sizes stay as they are, like statistics
    plain = ALONE[2].payload_bytes + 4 * parameters  # with a control variate for each
    scales = sum(submodel_scales(FAMILY, 3).values())
    assert sent.down_bytes == plain - 2 * small
    assert sent.up_bytes == plain - 3 * small + 4 * scales
    assert sent.payload_bytes == (sent.down_bytes + sent.up_bytes) // 2


def test_activations_are_those_of_the_batch() -> None:
    [row] = (r for r in profile_family(FAMILY, SMALL_IMAGES, 16, 1) if r.index == 3)
    assert row.activation_bytes == pytest.approx(2 * ALONE[2].activation_bytes, rel=0.01)
    module = FAMILY.meta_module(3)
    weights = sum(4 * p.numel() for p in module.parameters())
    buffers = sum(b.numel() * b.element_size() for b in module.buffers())
    assert isinstance(module, nn.Module)
    assert row.train_memory_bytes == row.activation_bytes + 3 * weights + buffers
    assert replace(row, activation_bytes=0) != row
