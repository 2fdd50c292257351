"""A folder is read for what it has: whole, cut off, of another version, or no run at all."""

import fcntl
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import nefl
from nefl.errors import ConfigError, RunError
from nefl.report.reading.folders import read_runs
from nefl.report.reading.runs import read_run
from nefl.running.lifecycle import train
from tests.report.conftest import MakeRun, round_line


def test_a_trained_run_is_read_back(quick: dict[str, Any], tmp_path: Path) -> None:
    result = train(quick, tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert run.status == "finished"
    assert list(run.scores) == result.summary["accuracy"]
    assert [entry.number for entry in run.rounds] == [1, 2, 3, 4]
    assert not run.problems
    assert run.settings["local.batch_size"] == 8


def test_a_runs_results_are_public(quick: dict[str, Any], tmp_path: Path) -> None:
    result = nefl.train(quick | {"rounds": 2}, tmp_path / "run")
    run = nefl.read_run(str(tmp_path / "run"))
    assert run.summary == json.loads(json.dumps(result.summary))
    assert run.config is not None
    assert run.config.rounds == 2
    curves = run.curves
    assert [(each["round"], each["submodel"]) for each in curves] == [(2, n) for n in range(1, 6)]
    assert [each["accuracy"] for each in curves] == result.summary["accuracy"]
    assert all(math.isfinite(each["test_loss"]) for each in curves)
    assert sum(each["updates"] for each in curves) == 4
    frame = run.frame()
    assert list(frame.columns) == list(curves[0])
    assert frame.accuracy.tolist() == result.summary["accuracy"]


def test_a_run_under_way_has_curves_and_no_summary(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = nefl.read_run(make_run("part", [[0.1, 0.2]], settings={"rounds": 9}))
    assert run.summary == {}
    assert [each["submodel"] for each in run.curves] == [1, 2]
    assert math.isnan(run.curves[0]["test_loss"]), "an older log has none"
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pandas is not installed .* pip install pandas"):
        run.frame()


def test_of_a_round_run_twice_the_last_line_counts(make_run: MakeRun) -> None:
    log = [round_line(1, [0.1, 0.2]), round_line(2, [0.2, 0.3]), round_line(1, [0.5, 0.6])]
    run = read_run(make_run("twice", log=log, settings={"rounds": 2}))
    assert [e.scores for e in run.rounds] == [(0.5, 0.6), (0.2, 0.3)]


def test_status_tells_how_far_a_run_came(make_run: MakeRun) -> None:
    assert read_run(make_run("empty", log=["{"])).status == "empty"
    assert read_run(make_run("part", [[0.1]], settings={"rounds": 9})).status == "unfinished"
    repeated = [{"event": "repeated", "round": 1, "why": "nobody", "failures": []}] * 3
    failed = read_run(make_run("failed", log=repeated))
    assert failed.status == "failed"
    assert failed.repeated[0].why == "nobody"
    stopped = [round_line(1), {"event": "stopped", "round": 1, "reason": "the disk is full"}]
    run = read_run(make_run("stopped", log=stopped, settings={"rounds": 5}))
    assert (run.status, run.stopped) == ("failed", "the disk is full")
    going_on = [*stopped, {"event": "resume", "round": 1}]
    resumed = read_run(make_run("resumed", log=going_on, settings={"rounds": 5}))
    assert (resumed.status, resumed.stopped) == ("unfinished", "")


def test_a_folder_in_use_is_running(make_run: MakeRun) -> None:
    folder = make_run("held", [[0.1]], settings={"rounds": 9})
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert read_run(folder).status == "running"
    assert read_run(folder).status == "unfinished"


def test_strange_lines_are_unknown_not_fatal(make_run: MakeRun) -> None:
    log: list[dict[str, Any] | str] = [
        round_line(1, loss=None, trained="all", failures=[{"client": "x"}, 3], simulated=[1]),
        {"event": "round", "round": "two"},
        "[1, 2]",
        "\x00not json",
        {
            "event": "round",
            "round": 2,
            "metrics": {"accuracy": [0.5, None]},
            "wall_seconds": "long",
        },
    ]
    run = read_run(make_run("strange", log=log, settings={"rounds": 2}))
    assert [entry.number for entry in run.rounds] == [1, 2]
    assert math.isnan(run.rounds[0].loss)
    assert run.rounds[0].trained == {}
    assert math.isnan(run.rounds[1].scores[1])
    assert run.rounds[1].seconds == 0
    assert any("1 line of" in problem for problem in run.problems)


def test_pipes_in_a_folder_are_named_and_nobody_waits(make_run: MakeRun) -> None:
    path = make_run("piped")
    for name in ("metrics.jsonl", "identity.json", "summary.json", "facts.json"):
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)
    run = read_run(path)
    assert run.problems == ("metrics.jsonl: cannot be read (is a pipe, not a file)",)
    assert (run.summary, run.fingerprint, run.facts) == ({}, "", None)


def test_settings_of_another_version_are_taken_and_named(make_run: MakeRun) -> None:
    folder = make_run("newer", [[0.5]])
    values = json.loads((folder / "config.json").read_text())
    values["model"]["pruning"] = "yes"
    (folder / "config.json").write_text(json.dumps(values))
    run = read_run(folder)
    assert run.config is None
    assert run.settings["model.pruning"] == "yes"
    assert "model.pruning" in run.problems[0]


def test_what_is_no_run_is_refused_by_name(tmp_path: Path, make_run: MakeRun) -> None:
    garbage = make_run("garbage")
    (garbage / "config.json").write_text("\x00\x01")
    with pytest.raises(RunError, match=r"garbage/config.json: is not valid json"):
        read_run(garbage)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(RunError, match="nothing: is no run's folder"):
        read_runs([tmp_path / "nothing"])


def test_a_folder_of_runs_stands_for_its_runs(tmp_path: Path, make_run: MakeRun) -> None:
    make_run("many/b", [[0.1]])
    one = make_run("many/a", [[0.1]])
    runs, refused = read_runs([one, tmp_path / "many", tmp_path / "none"])
    assert [run.name for run in runs] == ["a", "b"]
    assert len(refused) == 1


def test_a_link_to_itself_is_no_run(tmp_path: Path, make_run: MakeRun) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    run = make_run("a")
    runs, refused = read_runs([loop, run])
    assert [found.path for found in runs] == [run]
    assert "loop" in refused[0]


def test_runs_of_one_name_are_told_apart(make_run: MakeRun) -> None:
    runs, _ = read_runs([make_run("x/same", [[0.1]]), make_run("y/same", [[0.1]])])
    assert len({run.name for run in runs}) == 2


def test_numbers_without_end_are_no_counts() -> None:
    from nefl.report.reading.log_lines import read_round

    huge = 10**400
    entry = read_round(
        {"round": 1, "metrics": {"accuracy": [huge]}, "loss": huge, "bytes_up": huge,
         "wall_seconds": huge, "trained": {"9" * 5000: 1, "1": huge, "2": 3}},
        "accuracy",
    )  # fmt: skip
    assert entry is not None
    assert entry.trained == {1: 0, 2: 3}
    assert entry.bytes_up == 0
