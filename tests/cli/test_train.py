"""The commands that train, tried as a person and as a program would."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from nefl.cli.progress import show_duration
from nefl.running.lifecycle import claim_folder

from .conftest import call, run


@pytest.fixture
def recipe(quick: dict[str, Any], tmp_path: Path) -> str:
    path = tmp_path / "own.json"
    path.write_text(json.dumps(quick))
    return str(path)


def test_train_resume_evaluate(recipe: str, tmp_path: Path) -> None:
    out = str(tmp_path / "a [red]run[/red]")
    trained = run(
        "train", recipe, "--out", out, "--rounds", "3", "--seed", "5", "--set", "local.epochs=2"
    )
    assert trained.returncode == 0, trained.stderr
    assert "average" in trained.stdout
    assert "round 3/3" in trained.stderr
    assert "[red]run[/red]" in trained.stdout.replace("\n", "")
    config = json.loads((Path(out) / "config.json").read_text())
    assert (config["rounds"], config["seed"], config["local"]["epochs"]) == (3, 5, 2)
    measured = call("evaluate", out, "--json")
    assert measured.returncode == 0
    summary = json.loads((Path(out) / "summary.json").read_text())
    assert json.loads(measured.stdout)["accuracy"] == summary["accuracy"]
    again = call("resume", out, "--json", "--engine", "serial", "--device", "cpu")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["state_sha256"] == summary["state_sha256"]
    assert "submodel" in call("evaluate", out).stdout
    drawn = call("partition", out).stdout
    assert "20 clients, 200 examples, 10 classes" in drawn
    assert "client 19 |" in drawn


@pytest.mark.long
def test_json_is_all_that_goes_to_standard_output(recipe: str, tmp_path: Path) -> None:
    quickly = ["--engine", "workers", "--workers", "1", "--rounds", "1"]
    result = run("train", recipe, "--json", *quickly, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["run"] == "runs/own-1"
    assert (tmp_path / "runs" / "own-1" / "summary.json").exists()


def test_tensorboard_on_request(recipe: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    result = call("train", recipe, "--out", str(out), "--tensorboard")
    assert result.returncode == 0, result.stderr
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    assert [e.step for e in events.Scalars("train/loss")] == [1, 2, 3, 4]
    assert [e.step for e in events.Scalars("accuracy/average")] == [2, 4]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "digitz"], "neither a file nor listed by `nefl recipes`; did you mean digits"),
        (["train", "nowhere.toml"], "nowhere.toml: cannot be read"),
        (["train", "--set", "locl.epochs=1"], "locl is not a setting; did you mean 'local'"),
        (["train", "--set", "epochs"], "key=value"),
        (["train", "--set", "clients.count=5000"], "client"),
        (["train", "--engine", "ray"], "engine.name is 'ray'"),
        (["train", "--workers", "-3"], "engine.workers is -3"),
        (["train", "--rounds", "0"], "rounds is 0"),
        (["train", "--out", "/dev/null/x"], "/dev/null/x: cannot be made"),
        (["resume", "nowhere"], "no run's folder"),
        (["evaluate", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    result = call(*arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "runs").exists()


def test_bad_input_ends_a_process_with_code_2() -> None:
    result = run("train", "digitz")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "did you mean digits" in result.stderr


def test_a_folder_in_use_and_a_folder_with_a_run(recipe: str, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    assert call("train", recipe, "--out", out, "--rounds", "1").returncode == 0
    again = call("train", recipe, "--out", out)
    assert again.returncode == 2
    assert "resume it" in again.stderr


def test_free_folders_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert claim_folder("digits") == Path("runs/digits-1")
    assert claim_folder("some/where/digits.toml") == Path("runs/digits-2")
    assert Path("runs/digits-2").is_dir()


def test_durations_for_people() -> None:
    assert [show_duration(s) for s in (5, 65, 3700)] == ["5 s", "1 min 05 s", "1 h 01 min"]


def test_the_version_is_told() -> None:
    assert run("--version").stdout == f"nefl {version('nefl')}\n"


def test_published_figures_do_not_follow_to_another_method(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    recipe = tmp_path / "own.json"
    recipe.write_text(json.dumps(quick | {"rounds": 1, "published": {"worst": 50.0}}))
    same, other = ["--seed", "3"], ["--set", "model.method=fjord"]
    for name, flags, kept in (("a", same, 50.0), ("b", other, None)):
        done = call("train", str(recipe), "--out", str(tmp_path / name), *flags)
        assert done.returncode == 0, done.stderr
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config["published"]["worst"] == kept


def test_arguments_are_explained() -> None:
    assert "A recipe's name, or a TOML or JSON file." in call("train", "--help").stdout
