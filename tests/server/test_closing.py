"""When rounds close: the places of submodels, clocks of simulated devices, and whole runs."""

import math
from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nefl
from nefl.artifacts.notes import read_log
from nefl.config.reading import with_settings
from nefl.errors import ConfigError
from nefl.server.closing import ClosingRule, Places, close_by_clock, quotas
from nefl.state import TrainTask


def tasks_of(*submodels: int) -> list[TrainTask]:
    return [TrainTask(1, client, k) for client, k in enumerate(submodels)]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.data())
def test_quotas_are_within_one_of_the_exact_share(asked: list[int], data: st.DataObject) -> None:
    wanted = data.draw(st.integers(1, len(asked)))
    counts = Counter(asked)
    places = quotas(counts, wanted)
    assert sum(places.values()) == wanted
    for k, n in counts.items():
        assert abs(places[k] - wanted * n / len(asked)) < 1
        assert places[k] <= n


def test_by_hand() -> None:
    """Ten were asked, seven are wanted: four of submodel 1, three of submodel 2."""
    tasks = tasks_of(*[2] * 4, *[1] * 6)
    rule = ClosingRule(7, 0.5)
    seconds = [9.0, 8.0, 7.0, 20.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    closed = close_by_clock(tasks, seconds, rule)
    assert [task.client for task in closed.counted] == [0, 1, 2, 4, 5, 6, 7]
    assert [failure.task.client for failure in closed.left] == [3, 8, 9]
    assert all(failure.discarded for failure in closed.left)
    assert closed.seconds == 9.0
    # Seven replies are there after 7 s: without shares that is enough.
    without = close_by_clock(tasks, seconds, ClosingRule(7, 0.5, hold=1.0))
    assert [task.client for task in without.counted] == [2, 4, 5, 6, 7, 8, 9]
    assert without.seconds == 7.0
    # Places are kept a fifth longer: one more comes in time, and the last of them is given away.
    between = close_by_clock(tasks, seconds, ClosingRule(7, 0.5, hold=1.2))
    assert [task.client for task in between.counted] == [1, 2, 4, 5, 6, 7, 8]
    assert between.seconds == pytest.approx(8.4)


def test_places_that_a_submodel_cannot_fill_are_anybodys() -> None:
    tasks = tasks_of(2, 2, 1, 1)
    places = Places(tasks, ClosingRule(2, 1.0))
    assert places.take(tasks[2], 1.0) == [tasks[2]]
    assert places.take(tasks[3], 2.0) == []
    assert places.lose(tasks[0]) == []
    assert places.closes == math.inf
    assert places.lose(tasks[1]) == [tasks[3]]
    assert places.closes == 0.0


def test_a_soft_deadline_needs_a_quorum_and_uses_all_that_is_there() -> None:
    tasks = tasks_of(2, 2, 1, 1)
    rule = ClosingRule(2, 1.0, close_after=5.0)
    # Both of submodel 1 are there in time, and the place of submodel 2 is left.
    closed = close_by_clock(tasks, [30.0, 40.0, 1.0, 2.0], rule)
    assert ([t.client for t in closed.counted], closed.seconds) == ([2, 3], 5.0)
    # Nobody of submodel 2 is ever heard of, and only one of submodel 1 in time.
    closed = close_by_clock(tasks, [math.inf, math.inf, 1.0, 9.0], rule)
    assert ([t.client for t in closed.counted], closed.seconds) == ([2, 3], 9.0)
    assert [failure.discarded for failure in closed.left] == [False, False]
    # Too few at all: the round ends when nothing can come, without a quorum.
    closed = close_by_clock(tasks, [math.inf, math.inf, 1.0, math.inf], rule)
    assert ([t.client for t in closed.counted], closed.seconds) == ([2], 5.0)


def brute_force(tasks: list[TrainTask], seconds: list[float], rule: ClosingRule) -> set[int]:
    """Who counts, told without places: the largest set of early replies that keeps the quotas."""
    wanted = min(rule.wanted, len(tasks))
    kept = quotas(Counter(t.submodel for t in tasks), wanted)
    by_time = sorted(tasks, key=lambda t: seconds[t.client])
    for there in range(len(tasks) + 1):
        heard = by_time[:there]
        within = [
            t
            for number, t in enumerate(heard)
            if [h.submodel for h in heard[:number]].count(t.submodel) < kept[t.submodel]
        ]
        if len(within) == wanted:
            return {t.client for t in within}
    raise AssertionError("all were heard, and quotas sum up to what is wanted")


def test_every_order_of_arrival_keeps_the_quotas() -> None:
    tasks = tasks_of(3, 2, 2, 1, 1, 1)
    rule = ClosingRule(4, 0.5)
    for order in permutations(range(6)):
        seconds = [float(order.index(client)) for client in range(6)]
        closed = close_by_clock(tasks, seconds, rule)
        assert {t.client for t in closed.counted} == brute_force(tasks, seconds, rule)


@pytest.fixture
def unequal(quick: dict[str, Any]) -> dict[str, Any]:
    """Settings of a run over fast and slow devices, some of which drop out."""
    kinds = [
        {"name": "slow", "memory": 1e9, "macs_per_second": 1e7, "bandwidth": 1e5, "fails": 0.2},
        {"name": "fast", "memory": 1e9, "macs_per_second": 1e8, "bandwidth": 1e6},
    ]
    return with_settings(
        quick,
        {
            "rounds": 3,
            "clients": {
                **quick["clients"],
                "capability": "devices",
                "devices": kinds,
                "deadline": 6.0,
                "over_select": 1.75,
                "close_after": 5.0,
            },
        },
    )


def test_a_run_that_over_selects_repeats_on_every_engine_and_after_a_resume(
    unequal: dict[str, Any], tmp_path: Path, forked_workers: None
) -> None:
    class StopAfterTwo(nefl.Observer):
        def round_done(self, state: nefl.ServerState, *_: object) -> None:
            if state.round_number == 2:
                raise KeyboardInterrupt

    straight = nefl.train(unequal, tmp_path / "straight")
    workers = {"name": "workers", "workers": 2, "device": "cpu"}
    shared = nefl.train(unequal | {"engine": workers}, tmp_path / "workers")
    with pytest.raises(KeyboardInterrupt):
        nefl.train(unequal, tmp_path / "stopped", observers=[StopAfterTwo()])
    resumed = nefl.resume(tmp_path / "stopped")
    for other in (shared, resumed):
        for key in ("state_sha256", "simulated", "discarded"):
            assert other.summary[key] == straight.summary[key]
    rounds = [event for event in read_log(tmp_path / "straight") if event["event"] == "round"]
    for event in rounds:
        assert (event["tasks"], event["wanted"]) == (7, 4)
        assert sum(event["trained"].values()) <= 4
        assert event["simulated"]["nested"] <= 6.0
        assert event["tasks"] == sum(tier["asked"] for tier in event["tiers"].values())
        assert not event["order"]
    told = straight.summary["discarded"]
    assert told["updates"] == sum(len(event["discarded"]) for event in rounds) > 0
    assert told["updates"] == sum(tier["discarded"] for tier in told["by_tier"].values())
    # The same fleet with nobody to spare waits longer.
    waits = with_settings(unequal, {"clients.over_select": 1.0})
    slower = nefl.train(waits, tmp_path / "waits").summary["simulated"]["nested_seconds"]
    assert slower > straight.summary["simulated"]["nested_seconds"]


def test_no_clock_no_late_clients(quick: dict[str, Any], tmp_path: Path) -> None:
    for key, value in (("over_select", 1.5), ("close_after", 10.0)):
        settings = with_settings(quick, {f"clients.{key}": value})
        with pytest.raises(ConfigError, match=f"clients.{key}: who is late is a matter of time"):
            nefl.train(settings, tmp_path / key)
        assert not (tmp_path / key).exists()


def test_devices_that_drop_out_need_an_end_of_the_round(unequal: dict[str, Any]) -> None:
    del unequal["clients"]["close_after"]
    with pytest.raises(ConfigError, match=r"device 'slow'.*clients\.close_after"):
        nefl.train(unequal)
