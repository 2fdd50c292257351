"""Members within are charged for: work, memory, traffic."""

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from nefl.client.drift import ControlVariates
from nefl.client.within import Within
from nefl.config import WireConfig
from nefl.methods import make_family, priced
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
