"""A run's folder: no links are followed, nothing foreign is deleted, a whole checkpoint stays."""

import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nefl.artifacts.identity import (
    IDENTITY,
    check_unchanged,
    read_identity,
    settle,
    write_identity,
)
from nefl.artifacts.kept import checkpoints, read_kept
from nefl.artifacts.notes import METRICS, read_log, stored_config
from nefl.artifacts.runfolder import RunFolder
from nefl.artifacts.tensorfile import read_tensors
from nefl.config import RunConfig
from nefl.errors import RunError
from nefl.methods import make_family
from nefl.state import ServerState

FAMILY = make_family("resnet8", "nefl-wd")


def state(round_number: int) -> ServerState:
    fresh = FAMILY.initial_state(round_number)
    return ServerState(round_number, fresh.shared, fresh.per_submodel)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    RunFolder.create(tmp_path / "run", RunConfig()).close()
    return tmp_path / "run"


@pytest.mark.parametrize("name", [".lock", METRICS, IDENTITY, "summary.json"])
def test_a_link_to_a_file_is_refused_and_its_target_left(run: Path, name: str) -> None:
    precious = run.parent / "precious"
    precious.write_text("thesis")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(precious)
    with pytest.raises(RunError, match=f"{name}: is a symbolic link .to .*precious"):
        RunFolder(run)
    assert precious.read_text() == "thesis"


def test_checkpoints_elsewhere_are_refused_and_left(run: Path) -> None:
    elsewhere = run.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".bashrc").write_text("mine")
    (run / "checkpoints").rmdir()
    (run / "checkpoints").symlink_to(elsewhere)
    with pytest.raises(RunError, match="checkpoints: is a symbolic link"):
        RunFolder(run)
    with pytest.raises(RunError, match="checkpoints: is a symbolic link"):
        read_kept(run, FAMILY)
    assert (elsewhere / ".bashrc").read_text() == "mine"
    (run / "checkpoints").unlink()
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "round-0000001.safetensors").symlink_to(elsewhere / ".bashrc")
    with pytest.raises(RunError, match="round-0000001.safetensors: is a symbolic link"):
        RunFolder(run)
    assert (elsewhere / ".bashrc").read_text() == "mine"


def test_a_pipe_for_a_lock_is_refused_and_nobody_waits(run: Path) -> None:
    (run / ".lock").unlink()
    os.mkfifo(run / ".lock")
    with pytest.raises(RunError, match=".lock: cannot be opened .is a pipe, not a file"):
        RunFolder(run)


def test_only_our_own_parts_are_deleted(run: Path) -> None:
    foreign = [run / ".notes.txt", run / ".thesis.abc.part", run / "checkpoints" / ".keep"]
    foreign.append(run / "checkpoints" / ".thesis.tex.77.part")
    for path in foreign:
        path.write_text("mine")
    half = run / "checkpoints" / ".round-0000003.safetensors.ab12_c.part"
    half.mkdir()
    (half / ".tmpABCDEF").write_bytes(b"half a checkpoint")
    before = run / ".config.json.77.part"  # a file, as earlier versions left it
    before.write_text("{")
    RunFolder(run).close()
    assert all(path.exists() for path in foreign)
    assert not half.exists()
    assert not before.exists()


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def test_the_checkpoint_just_written_outlives_a_damaged_newer_one(run: Path) -> None:
    folder = RunFolder(run)
    for number in (10, 20):
        folder.save_checkpoint(state(number), keep=2)
    damage(checkpoints(run)[0])
    found, _ = folder.load_newest(FAMILY)
    assert found is not None
    assert found.round_number == 10
    folder.save_checkpoint(state(15), keep=1)  # as Ctrl-C would after five rounds
    folder.close()
    assert [path.name for path in checkpoints(run)] == ["round-0000015.safetensors"]
    assert read_kept(run, FAMILY).round_number == 15


def test_an_older_checkpoint_is_used_where_the_newest_is_damaged(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RunError, match="has no checkpoint yet"):
        read_kept(run, FAMILY)
    with pytest.raises(RunError, match="has no best checkpoint yet"):
        read_kept(run, FAMILY, best=True)
    folder = RunFolder(run)
    for number in (1, 2):
        folder.save_checkpoint(state(number), keep=2)
    folder.close()
    damage(checkpoints(run)[0])
    with caplog.at_level(logging.WARNING):
        assert read_kept(run, FAMILY).round_number == 1
    assert "round-0000002" in caplog.text
    assert "taking round 1 instead" in caplog.text


def test_events_have_a_time(run: Path) -> None:
    folder = RunFolder(run)
    folder.log("start", round=0)
    folder.close()
    (event,) = read_log(run)
    assert list(event)[:2] == ["event", "time"]
    told = datetime.fromisoformat(event["time"])
    assert abs(datetime.now(UTC) - told) < timedelta(hours=1)


@pytest.mark.parametrize("known", [{"settings": "a"}, {"settings": "a", "code": {}}])
def test_what_an_earlier_version_did_not_note_is_noted_now(
    run: Path, known: dict[str, Any]
) -> None:
    now = {"settings": "a", "images": "b"}
    write_identity(run, known)
    assert settle(run, now, allow_code=False) == []
    with pytest.raises(RunError, match="images changed since"):
        check_unchanged(run, now | {"images": "c"})
    with pytest.raises(RunError, match="weights changed since"):
        check_unchanged(run, now | {"weights": "new"})


def test_a_kill_while_rounds_are_added_leaves_a_run_that_goes_on(run: Path) -> None:
    write_identity(run, {"settings": "five", "images": "a"})
    write_identity(run, {"settings": "five", "images": "a", "extended": "nine"})
    for settings in ("five", "nine"):
        check_unchanged(run, {"settings": settings, "images": "a"})
    with pytest.raises(RunError, match="settings changed"):
        check_unchanged(run, {"settings": "seven", "images": "a"})
    settle(run, {"settings": "nine", "images": "a"}, allow_code=False)
    with pytest.raises(RunError, match="settings changed"):
        check_unchanged(run, {"settings": "five", "images": "a"})


def test_pipes_and_links_for_notes_are_refused_and_nobody_waits(run: Path) -> None:
    os.mkfifo(run / "identity.json")
    with pytest.raises(RunError, match="identity.json: cannot be read .is a pipe, not a file"):
        read_identity(run)
    (run / "metrics.jsonl").unlink(missing_ok=True)
    assert list(read_log(run)) == []
    os.mkfifo(run / "metrics.jsonl")
    with pytest.raises(OSError, match="is a pipe, not a file"):
        list(read_log(run))
    os.mkfifo(run / "c.safetensors")
    with pytest.raises(RunError, match="c.safetensors: is a pipe, not a file"):
        read_tensors(run / "c.safetensors")
    (run / "config.json").rename(run.parent / "config.json")
    (run / "config.json").symlink_to(run.parent / "config.json")
    with pytest.raises(RunError, match="config.json: cannot be read .is a symbolic link"):
        stored_config(run)


def test_a_line_without_end_is_passed_over(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nefl.artifacts.notes.MAX_LINE", 30)
    (run / "metrics.jsonl").write_text('{"event": "' + "x" * 100 + '"}\n{"event": "start"}\n')
    assert list(read_log(run)) == [{"event": "start"}]
