from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nefl.errors import ConfigError, NestingError
from nefl.methods import make_family
from nefl.nesting.coverage import (
    cells,
    expected_coverage,
    min_coverage,
    tensor_cells,
    uncovered,
)
from nefl.nesting.tiers import submodel_probabilities, tier_choices


@given(data=st.data(), shape=st.lists(st.integers(1, 5), max_size=3))
def test_cells_agree_with_counting_every_element(data: st.DataObject, shape: list[int]) -> None:
    corners = tuple(
        (k, tuple(data.draw(st.integers(1, size)) for size in shape))
        for k in range(1, data.draw(st.integers(1, 4)) + 1)
    )
    seen = np.zeros(shape, dtype=int)
    for cell in cells(tuple(shape), corners):
        seen[cell.box] += 1
        assert seen[cell.box].size == cell.numel
        for element in product(*(range(b.start, b.stop) for b in cell.box)):
            holders = {k for k, c in corners if all(i < n for i, n in zip(element, c, strict=True))}
            assert holders == cell.holders
    assert (seen == 1).all()


def test_every_element_of_the_papers_families_is_covered() -> None:
    for model in ("resnet18", "resnet34", "resnet56"):
        for method in ("nefl-w", "nefl-d", "nefl-wd"):
            assert min_coverage(make_family(model, method)) >= 1


def test_outer_channels_are_uncovered_without_the_full_model() -> None:
    family = make_family("resnet18", "nefl-w")
    missing = uncovered(family, range(1, len(family)))
    # Width 0.8 keeps 58 of 64 channels of the stem, 3 inputs, 3×3 kernel.
    assert missing["conv1.weight"] == 6 * 3 * 9
    assert missing["fc.weight"] == 10 * (512 - 458)
    assert "fc.bias" not in missing
    assert min_coverage(family, dict.fromkeys(range(1, len(family)), 1)) == 0
    assert not uncovered(family, [len(family)])


def test_depth_scaling_covers_all_without_the_full_model_where_it_can() -> None:
    family = make_family("resnet18", "nefl-d")
    assert not uncovered(family, range(1, len(family)))
    assert min_coverage(family) == 2
    assert {cell.holders for cell in tensor_cells(family, "layer4.1.conv1.weight")} == {
        frozenset({4, 5})
    }


def test_clients_are_counted_one_by_one() -> None:
    family = make_family("resnet8", "nefl-w")
    assert min_coverage(family, {5: 2, 1: 1}) == 2
    assert min_coverage(family, {1: 1, 2: 1}) == 0


def test_tier_rule_is_the_papers() -> None:
    assert [list(tier_choices(x, 5)) for x in range(1, 6)] == [
        [1, 2, 3],
        [1, 2, 3, 4],
        [1, 2, 3, 4, 5],
        [2, 3, 4, 5],
        [3, 4, 5],
    ]
    with pytest.raises(ConfigError, match="tiers 1 to 5"):
        tier_choices(6, 5)


def test_expected_coverage_against_a_simulation() -> None:
    family = make_family("resnet8", "nefl-w")
    probabilities = submodel_probabilities([1] * 5, 5)
    assert sum(probabilities) == pytest.approx(1)
    assert probabilities[0] == pytest.approx((1 / 3 + 1 / 4 + 1 / 5) / 5)
    got = expected_coverage(family, 10, probabilities)
    assert got.minimum == pytest.approx(10 * probabilities[4])
    # Brute force over every element of one tensor, by drawing rounds.
    rng = np.random.default_rng(0)
    shape = family.global_layout["layer3.0.conv2.weight"].shape[:2]
    covered = []
    for _ in range(2000):
        count = np.zeros(shape)
        for k in rng.choice(5, size=10, p=probabilities):
            rows, columns = family.layout(int(k) + 1)["layer3.0.conv2.weight"].shape[:2]
            count[:rows, :columns] += 1
        covered.append(count)
    mean = np.mean(covered, axis=0)
    assert mean[-1, -1] == pytest.approx(got.minimum, rel=0.1)
    untouched = np.mean(np.stack(covered) == 0)
    assert untouched == pytest.approx(got.untouched, abs=0.03)


def test_probabilities_must_fit() -> None:
    family = make_family("resnet8", "nefl-w")
    with pytest.raises(NestingError, match="5 numbers"):
        expected_coverage(family, 10, [0.5, 0.5])
    with pytest.raises(ConfigError, match="5 numbers"):
        submodel_probabilities([1, 1], 5)
    with pytest.raises(ConfigError, match="none negative"):
        submodel_probabilities([1, 1, 1, 1, -1], 5)
