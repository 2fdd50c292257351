"""Clients that keep failing wait longer each time, and those long unheard are preferred."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import nefl
from nefl.artifacts.checkpoint import load_state, save_state
from nefl.artifacts.notes import read_log
from nefl.config import ClientsConfig
from nefl.config.reading import with_settings
from nefl.errors import ConfigError, RunError
from nefl.server.cohort import CohortPlan, sample_cohort
from nefl.server.ledger import FAILED, HEARD, UNTIL, note_round, open_ledger, ready
from nefl.state import Tensors


def test_pauses_double_up_to_a_bound_and_end_with_an_update() -> None:
    clients = ClientsConfig(count=3, per_round=1, pause=1, longest_pause=5)
    ledger, missed = open_ledger({}, clients), []
    for round_number in range(1, 30):
        if 1 in ready(range(3), ledger, round_number, fewest=1):
            ledger = note_round(ledger, clients, round_number, heard=[0], failed=[1])
        else:
            missed.append(round_number)
    assert missed == [2, 4, 5, 7, 8, 9, 10, *range(12, 17), *range(18, 23), *range(24, 29)]
    assert ledger[FAILED].tolist() == [0, 7, 0]
    assert ledger[HEARD][0] == 29
    ledger = note_round(ledger, clients, 35, heard=[1], failed=[])
    assert (int(ledger[FAILED][1]), int(ledger[UNTIL][1])) == (0, 0)
    assert list(ready(range(3), ledger, 36, fewest=1)) == [0, 1, 2]


def test_where_too_few_are_left_the_next_in_time_are_asked() -> None:
    ledger = {UNTIL: torch.tensor([0, 9, 7, 8]), FAILED: torch.ones(4), HEARD: torch.zeros(4)}
    assert list(ready(range(4), ledger, 5, fewest=1)) == [0]
    assert list(ready(range(4), ledger, 5, fewest=3)) == [0, 2, 3]
    assert list(ready(range(4), ledger, 5, fewest=1, returned=[1])) == [0, 1]


def test_a_ledger_without_failures_draws_the_same_cohorts() -> None:
    plain = CohortPlan(ClientsConfig(), 5, seed=3)
    kept = CohortPlan(ClientsConfig(pause=1), 5, seed=3)
    ledger = open_ledger({}, kept.clients)
    for number in (1, 2, 3):
        assert sample_cohort(plain, number) == sample_cohort(kept, number, 0, ledger)


@pytest.mark.parametrize("left_out", [0, 2])
def test_those_long_unheard_are_drawn_more_often(left_out: int) -> None:
    clients = ClientsConfig(count=50, per_round=5, prefer="unheard", capability="fixed")
    plan = CohortPlan(clients, 3, seed=0, left_out=left_out, levels=5 if left_out else 0)
    ledger: Tensors = open_ledger({}, clients)
    ledger[HEARD][25:] = 90  # seen ten rounds ago, the others a hundred
    drawn: Counter[bool] = Counter()
    for attempt in range(200):
        cohort = sample_cohort(plan, 100, attempt, ledger)
        assert len(set(cohort)) == 5
        assert all(client >= 10 * left_out for client in cohort)
        drawn.update(client < 25 for client in cohort)
    assert drawn[True] > drawn[False]  # with 5 of 30 clients, or with half of them


def test_a_run_with_a_ledger_goes_on_with_the_same_cohorts(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    kind = {"name": "d", "memory": 1e9, "macs_per_second": 1e8, "bandwidth": 1e6, "fails": 0.4}
    settings = with_settings(
        quick,
        {
            "rounds": 6,
            "clients.capability": "devices",
            "clients.devices": [kind],
            "clients.close_after": 60.0,
            "clients.count": 12,
            "clients.pause": 2,
            "clients.prefer": "unheard",
            "server.quorum": 0.25,
        },
    )

    class StopAfterThree(nefl.Observer):
        def round_done(self, state: nefl.ServerState, *_: object) -> None:
            if state.round_number == 3:
                raise KeyboardInterrupt

    straight = nefl.train(settings, tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        nefl.train(settings, tmp_path / "stopped", observers=[StopAfterThree()])
    resumed = nefl.resume(tmp_path / "stopped")
    assert resumed.summary["state_sha256"] == straight.summary["state_sha256"]
    for name, tensor in straight.state.ledger.items():
        assert torch.equal(tensor, resumed.state.ledger[name])
    rounds = [event for event in read_log(tmp_path / "straight") if event["event"] == "round"]
    failed = [{each["client"] for each in event["failures"]} for event in rounds]
    heard = [{c for some in event["clients"].values() for c in some} for event in rounds]
    assert any(failed)
    for number, event in enumerate(rounds[1:], start=1):
        asked = failed[number] | heard[number]
        assert not asked & failed[number - 1], event["round"]
    # A state's checksum is that of its weights; the ledger has one of its own.
    path = tmp_path / "state.safetensors"
    save_state(path, straight.state)
    assert load_state(path, straight.family).ledger.keys() == straight.state.ledger.keys()
    whole = path.read_bytes()
    place = whole.index(straight.state.ledger[HEARD].numpy().tobytes())
    path.write_bytes(whole[:place] + b"\x63" + whole[place + 1 :])
    with pytest.raises(RunError, match="is damaged"):
        load_state(path, straight.family)


def test_pauses_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match=r"clients\.pause is 9, longest_pause 3"):
        ClientsConfig(pause=9, longest_pause=3)
