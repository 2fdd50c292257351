"""Counters of runs, read by Prometheus' own parser."""

import json
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from nefl.report.page.counters import REASONS, exposition
from nefl.report.reading.folders import read_runs
from tests.report.conftest import MakeRun, round_line

LABELS = ("run", "metric", "submodel", "reason", "way", "state")


def samples(folder: Path) -> dict[tuple[str, ...], float]:
    text = exposition(read_runs([folder])[0]).decode()
    return {
        (sample.name, *(sample.labels[label] for label in LABELS if label in sample.labels)): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_a_run_has_done_is_counted(make_run: MakeRun) -> None:
    failed = [
        {"client": c, "submodel": 1, "reason": f"client {c}: no reply in {c + 1}.5 s"}
        for c in range(3)
    ]
    more: dict[str, Any] = {"bytes_down": 100, "bytes_up": 40, "wall_seconds": 2.0}
    log = [
        {"event": "joined", "node": "7", "name": "kitchen", "client": 0},
        round_line(1, [0.1, 0.2], trained={"1": 1, "2": 1}, failures=failed, **more),
        round_line(2, [0.2, 0.3], trained={"2": 2}, failures=[], **more),
    ]
    found = samples(make_run('a "run"', log=log, settings={"rounds": 9}))
    name = 'a "run"'
    assert found["nefl_rounds_total", name] == 2
    assert found["nefl_rounds_planned", name] == 9
    assert found["nefl_updates_total", name, "2"] == 3
    assert found["nefl_bytes_total", name, "down"] == 200
    assert found["nefl_round_seconds_total", name] == 4
    assert found["nefl_score", name, "accuracy", "2"] == 0.3
    assert found["nefl_nodes", name, "there"] == 1
    assert found["nefl_failures_total", name, "no reply in # s"] == 3


def test_reasons_are_few_whatever_clients_say(make_run: MakeRun) -> None:
    words = [{"client": 0, "submodel": 1, "reason": f"it says {'x' * n}"} for n in range(70)]
    found = samples(make_run("run", log=[round_line(1, [0.1], failures=words)]))
    reasons = [key[2] for key in found if key[0] == "nefl_failures_total"]
    assert len(reasons) == REASONS + 1
    assert found["nefl_failures_total", "run", "others"] == 70 - REASONS


def test_a_run_that_has_not_begun_has_counters_too(make_run: MakeRun) -> None:
    assert samples(make_run("empty"))["nefl_rounds_total", "empty"] == 0


def test_scores_that_are_not_finite_are_left_out(make_run: MakeRun) -> None:
    folder = make_run("run", log=[json.dumps(round_line(1, [0.5])).replace("0.5", "null")])
    assert not [key for key in samples(folder) if key[0] == "nefl_score"]
