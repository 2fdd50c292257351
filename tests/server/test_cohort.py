from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from nefl.config import ClientsConfig, DeviceConfig
from nefl.errors import ConfigError
from nefl.methods import make_family
from nefl.models.images import SMALL_IMAGES
from nefl.nesting.profile import profile_family
from nefl.nesting.tiers import tier_choices
from nefl.seeds import Purpose, generator_for
from nefl.server.cohort import CohortPlan, assign_submodels, sample_cohort, tier_of, unlocked_in
from nefl.server.devices import Fleet
from nefl.state import TrainTask


def plan(**settings: object) -> CohortPlan:
    return CohortPlan(ClientsConfig(**settings), submodels=5, seed=3)  # type: ignore[arg-type]


def test_tiers_are_even() -> None:
    assert Counter(tier_of(client, 100, 5) for client in range(100)) == dict.fromkeys(
        range(1, 6), 20
    )
    assert {tier_of(client, 3, 5) for client in range(3)} <= set(range(1, 6))


def test_cohorts_repeat_and_differ() -> None:
    first = sample_cohort(plan(), 1)
    assert first == sample_cohort(plan(), 1)
    assert len(set(first)) == 10
    assert first != sample_cohort(plan(), 2)
    assert first != sample_cohort(plan(), 1, attempt=1)
    other = CohortPlan(ClientsConfig(), 5, seed=4)
    assert first != sample_cohort(other, 1)


def test_everybody_is_drawn_sooner_or_later() -> None:
    seen = Counter(client for r in range(1, 301) for client in sample_cohort(plan(), r))
    assert set(seen) == set(range(100))
    assert max(seen.values()) < 60


def test_the_papers_rule_draws_within_two_of_the_tier() -> None:
    counts: Counter[tuple[int, int]] = Counter()
    for round_number in range(1, 400):
        for task in assign_submodels(range(100), plan(), round_number):
            counts[tier_of(task.client, 100, 5), task.submodel] += 1
    assert set(counts) == {
        (x, k) for x in range(1, 6) for k in range(max(1, x - 2), min(x + 2, 5) + 1)
    }
    for tier in range(1, 6):
        drawn = [n for (x, _), n in counts.items() if x == tier]
        assert max(drawn) < 1.1 * min(drawn), "uniform"


def test_largest_first_so_that_sums_and_workers_have_one_order() -> None:
    tasks = assign_submodels(sample_cohort(plan(), 1), plan(), 1)
    assert [t.submodel for t in tasks] == sorted((t.submodel for t in tasks), reverse=True)


def test_fixed_tiers() -> None:
    tasks = assign_submodels(range(100), plan(capability="fixed"), 1)
    assert all(t.submodel == tier_of(t.client, 100, 5) for t in tasks)


FAMILY = make_family("resnet8", "nefl-w")
PROFILES = profile_family(FAMILY, SMALL_IMAGES, 32)


def fleet(*devices: DeviceConfig, fluctuation: float = 0.0, deadline: float | None = None) -> Fleet:
    clients = ClientsConfig(
        capability="devices", devices=devices, fluctuation=fluctuation, deadline=deadline
    )
    return Fleet(clients, PROFILES, epochs=2, examples=np.full(100, 50), seed=0)


def device(memory: float = 1e12, speed: float = 1e12, bandwidth: float = 1e12) -> DeviceConfig:
    return DeviceConfig("d", memory, speed, bandwidth)


def test_memory_decides_the_submodel() -> None:
    for k, profile in enumerate(PROFILES, start=1):
        assert fleet(device(memory=profile.train_memory_bytes)).fitting(0, 1)[-1] == k
    too_small = fleet(device(memory=PROFILES[0].train_memory_bytes - 1))
    assert too_small.fitting(0, 1) == []


def test_the_deadline_decides_the_submodel() -> None:
    seconds = 3 * PROFILES[2].macs_total * 50 * 2 / 1e9 + 2 * PROFILES[2].payload_bytes / 1e6
    slow = device(speed=1e9, bandwidth=1e6)
    assert fleet(slow, deadline=seconds * 1.0001).fitting(0, 1)[-1] == 3
    assert fleet(slow, deadline=seconds * 0.9999).fitting(0, 1)[-1] == 2


def test_conditions_fluctuate_and_repeat() -> None:
    shaky = fleet(device(), fluctuation=0.5)
    drawn = [shaky.conditions(7, r).memory for r in range(1, 2001)]
    assert drawn[0] == shaky.conditions(7, 1).memory
    assert np.std(np.log(drawn)) == pytest.approx(0.5, rel=0.1)
    assert fleet(device()).conditions(7, 1).memory == 1e12


def test_devices_are_dealt_by_share_and_stay() -> None:
    common = DeviceConfig("common", 1e9, 1e9, 1e6, share=3)
    rare = DeviceConfig("rare", 1e9, 1e9, 1e6, share=1)
    made = fleet(common, rare)
    names = Counter(made.device(client).name for client in range(2000))
    assert names["rare"] / 2000 == pytest.approx(0.25, abs=0.03)
    assert made.device(5) == made.device(5)


def test_the_alternatives_train_nothing_within() -> None:
    """What members within cost is charged to the nested round, not to the full model's."""
    plain = fleet(device(memory=1.5 * PROFILES[-1].train_memory_bytes, speed=1e6))
    double = [
        replace(p, train_macs=2 * p.train_macs, train_memory_bytes=2 * p.train_memory_bytes)
        for p in PROFILES
    ]
    within = replace(plain, profiles=double, full_alone=PROFILES[-1])
    tasks = [TrainTask(1, client, 1) for client in range(3)]
    without, found = (each.round_times(range(3), tasks, 1) for each in (plain, within))
    assert without.strong_clients == 3
    assert found.nested > 1.5 * without.nested
    assert replace(found, nested=without.nested) == without


def test_round_times_show_what_stragglers_cost() -> None:
    weak = DeviceConfig("weak", PROFILES[0].train_memory_bytes, 1e8, 1e5)
    strong = DeviceConfig("strong", 1e12, 1e10, 1e7)
    made = fleet(weak, strong)
    cohort = list(range(10))
    assignment = CohortPlan(made.clients, 5, 0, made)
    tasks = assign_submodels(cohort, assignment, 1)
    times = made.round_times(cohort, tasks, 1)
    assert times.strong_clients == sum(made.device(c).name == "strong" for c in cohort)
    assert 0 < times.strong_clients < 10
    assert times.strong_only < times.nested < times.full
    assert times.sat_out == 0
    assert {t.submodel for t in tasks} == {1, 5}


def test_clients_without_a_fitting_submodel_sit_out() -> None:
    made = fleet(device(memory=1))
    assignment = CohortPlan(made.clients, 5, 0, made)
    assert assign_submodels(range(10), assignment, 1) == []
    assert made.round_times(list(range(10)), [], 1).sat_out == 10


def turns(**settings: object) -> CohortPlan:
    return plan(choice="turns", **settings)


@pytest.mark.parametrize("per_round", [5, 12])
def test_every_submodel_has_its_turn_in_each_round(per_round: int) -> None:
    some = turns(per_round=per_round)
    for number in range(1, 30):
        cohort = sample_cohort(some, number)
        tasks = assign_submodels(cohort, some, number)
        assert [t.client for t in sorted(tasks, key=lambda t: t.client)] == cohort
        for task in tasks:  # within what clients can do
            tier = tier_of(task.client, some.clients.count, 5)
            assert abs(task.submodel - tier) <= 2
        able = [set(range(max(1, t - 2), min(5, t + 2) + 1)) for t in
                (tier_of(c, some.clients.count, 5) for c in cohort)]  # fmt: skip
        assert len({t.submodel for t in tasks}) == _most_different(able)
        assert tasks == assign_submodels(cohort, some, number), "it repeats"


def _most_different(able: list[set[int]]) -> int:
    """Return how many different submodels clients can have, by brute force."""
    reached = {frozenset[int]()}
    for choices in able:
        reached |= {chosen | {k} for chosen in reached for k in choices}
    return max(map(len, reached))


def test_turns_differ_from_round_to_round() -> None:
    some = turns(per_round=2, capability="tiers", spread=4)
    seen = Counter(t.submodel for n in range(1, 100) for t in assign_submodels([3, 7], some, n))
    assert set(seen) == {1, 2, 3, 4, 5}


def test_clients_without_a_fitting_submodel_have_no_turn() -> None:
    devices = fleet(device(memory=1.0))
    some = CohortPlan(ClientsConfig(choice="turns"), 5, 0, devices)
    assert assign_submodels([1, 2], some, 1) == []


def test_small_submodels_come_first() -> None:
    some = plan(small_first=(10, 20), per_round=50)
    largest = {
        n: max(t.submodel for t in assign_submodels(sample_cohort(some, n), some, n))
        for n in (1, 10, 11, 13, 15, 18, 20, 21, 99)
    }
    assert largest == {1: 1, 10: 1, 11: 1, 13: 2, 15: 3, 18: 4, 20: 5, 21: 5, 99: 5}
    assert {n: unlocked_in(some, n) for n in largest} == largest


def test_what_is_not_unlocked_falls_to_the_largest_that_is() -> None:
    usual, small = plan(per_round=50), plan(small_first=(10, 20), per_round=50)
    cohort = sample_cohort(usual, 15)
    drawn = {t.client: t.submodel for t in assign_submodels(cohort, usual, 15)}
    for task in assign_submodels(cohort, small, 15):
        assert task.submodel == min(3, drawn[task.client])


@pytest.mark.parametrize("rounds", [(3, 3), (5, 2), (-1, 4)])
def test_small_first_wants_two_rising_numbers(rounds: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="small_first .* two rising numbers of rounds"):
        ClientsConfig(small_first=rounds)


@pytest.mark.parametrize("rule", [{}, {"choice": "turns"}, {"small_first": (2, 10)}])
def test_devices_never_get_what_does_not_fit(rule: dict[str, object]) -> None:
    """Deeper submodels may need less memory than shallower ones."""
    profiles = profile_family(make_family("resnet20", "nefl-d"), SMALL_IMAGES, 32)
    needs = [row.train_memory_bytes for row in profiles]
    assert needs != sorted(needs), "else there is nothing to show"
    kinds = (device(memory=0.55 * needs[-1]), device(memory=0.45 * needs[-1]))
    clients = ClientsConfig(capability="devices", devices=kinds, fluctuation=0.0, **rule)  # type: ignore[arg-type]
    sizes = np.full(100, 50, dtype=np.int64)
    devices = Fleet(clients, profiles, 1, sizes, 0)
    some = CohortPlan(clients, 5, 0, devices)
    seen = Counter[int]()
    for number in range(1, 21):
        for task in assign_submodels(range(100), some, number):
            assert devices.fits(task.client, task.submodel, devices.conditions(task.client, number))
            seen[task.submodel] += 1
    assert len(seen) > 1


def test_a_round_of_members_alone_always_has_a_client() -> None:
    """Three clients, of which only the last may come to member 5, and by chance does not."""
    clients = ClientsConfig(count=3, per_round=2)
    some = CohortPlan(clients, submodels=1, seed=0, levels=5, left_out=4)
    chance = 0
    for number in range(1, 100):
        cohort = sample_cohort(some, number)
        tasks = assign_submodels(cohort, some, number)
        assert {task.submodel for task in tasks} == {1}
        level = generator_for(0, Purpose.SUBMODEL, number, 2).choice(tier_choices(4, 5))
        chance += level < 5
    assert 0 < chance < 100, "else there is nothing to show"


def test_where_nobody_can_train_a_member_nobody_is_asked() -> None:
    clients = ClientsConfig(count=3, per_round=2, capability="fixed")
    some = CohortPlan(clients, submodels=1, seed=0, levels=5, left_out=4)
    assert sample_cohort(some, 1) == []
