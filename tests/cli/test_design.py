import io
import json
import shutil
from pathlib import Path

import pytest
import typer

from nefl.cli.progress import ScoredLines
from nefl.cli.terminal import Terminal
from nefl.cli.train import EXIT_INTERRUPTED, goes_on_later
from nefl.config.reading import config_from, read_config
from nefl.fleet.kinds import read_fleet
from nefl.running.assembly import assemble

from .conftest import call

FLEET = """
deadline = "20s"
[[devices]]
name = "phone"
share = 3
memory = "1MB"
macs_per_second = "100M"
bandwidth = "1MB"
[[devices]]
name = "server"
memory = "1GB"
macs_per_second = "100G"
bandwidth = "1GB"
"""


def test_a_designed_recipe_runs_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nefl.fleet.fitting.WIDTHS", (0.5, 0.75, 1.0))
    (tmp_path / "fleet.toml").write_text(FLEET)
    given = ["resnet8", "--devices", "fleet.toml", "--method", "nefl-w", "--set", "rounds=1"]
    done = call("design", *given, "-o", "r.toml", "--figure", "f.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "phone: member 1; width 0.75, blocks 1 1 1 would take" in done.stdout
    assert "trained by 25% of the population" in done.stdout
    assert "train it with: nefl train r.toml" in done.stdout
    text = (tmp_path / "r.toml").read_text()
    assert text.startswith("# A family for the devices of fleet.toml:\n# phone (75%): member 1, ")
    config = config_from(read_config(tmp_path / "r.toml"))
    assert [member.width for member in config.model.members] == [0.5, 1.0]
    assert len(assemble(config).family) == 2
    assert json.loads((tmp_path / "f.json").read_text())
    told = json.loads(call("design", *given, "--json", cwd=tmp_path).stdout)
    assert [each["member"] for each in told["devices"]] == [1, 2]
    assert told["config"] == config.to_dict()


def test_what_a_design_refuses(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET.replace('"1MB"\nmacs', '"1KB"\nmacs'))
    for arguments, words in (
        (["resnet8", "--devices", "none.toml"], "none.toml: cannot be read"),
        (["resnet9", "--devices", "fleet.toml"], "model 'resnet9' is unknown"),
        (["resnet8", "--devices", "fleet.toml", "--set", "model.ratios=[1]"], "design decides"),
        (["resnet8", "--devices", "fleet.toml", "--figure", "f.gif"], "ends with .svg"),
        (["resnet8", "--devices", "fleet.toml", "--figure", "no/f.svg"], "no/f.svg: cannot be"),
    ):
        done = call("design", *arguments, "-o", "r.toml", cwd=tmp_path)
        assert done.returncode == 2
        assert words in done.stderr
        assert not (tmp_path / "r.toml").exists()


def test_a_device_measures_itself_for_a_design(tmp_path: Path) -> None:
    asked = ["measure", "resnet8", "--name", "mine", "--bandwidth", "1MB", "--memory", "50MB"]
    done = call(*asked, "--batch", "2", "-o", "mine.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [kind] = read_fleet(tmp_path / "mine.toml").devices
    assert (kind.name, kind.bandwidth) == ("mine", 1e6)
    assert kind.macs_per_second > 0
    both = call("measure", "--bandwidth", "1MB", "--url", "http://127.0.0.1/", cwd=tmp_path)
    assert (both.returncode, both.stdout) == (2, "")
    assert "give one of them" in both.stderr


def test_what_a_search_prints(digits_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(digits_run, tmp_path / "run"))
    few = ["--population", "2", "--generations", "1", "--examples", "20"]
    done = call("search", "run", "--fits", "params<30k", *few, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    best = next(line for line in done.stdout.splitlines() if line.startswith("best: "))
    member = best.removeprefix("best: ").split(": accuracy")[0]
    assert f"nefl export run --member '{member}' -o FILE" in done.stdout
    told = json.loads(call("search", str(run), "--fits", "params<30k", *few, "--json").stdout)
    assert told["best"]["member"] == member
    assert told["best"]["params"] < 30_000
    none = call("search", str(run), "--fits", "params<10")
    assert (none.returncode, none.stdout) == (2, "")
    assert "no member fits: the smallest (width = 0.0625" in none.stderr


def test_a_design_by_evidence_goes_on_with_its_warm_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nefl.fleet.fitting.WIDTHS", (0.25, 0.5, 0.75, 1.0))
    monkeypatch.setattr("nefl.fleet.evidence.DRAWN", 3)
    (tmp_path / "fleet.toml").write_text(FLEET)
    sizes = ["data.train=60", "data.test=20", "clients.count=2", "clients.per_round=1"]
    given = ["resnet8", "--devices", "fleet.toml", "--method", "nefl-w", "-o", "r.toml"]
    given += ["--score", "trained", "--tries", "4"]
    given += [word for each in sizes for word in ("--set", each)]
    done = call("design", *given, "--rounds", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 members scored" in done.stderr
    assert (tmp_path / "r.warm-up" / "summary.json").exists()
    assert config_from(read_config(tmp_path / "r.toml")).model.method == "nefl-w"
    (tmp_path / "r.toml").unlink()
    for arguments, words in (
        ([*given, "--rounds", "2"], "r.warm-up: holds another run than the warm-up"),
        ([*given[:-8], "--tries", "2"], "--tries 2: give 4 or more"),
        (
            [*given[:5], "--rounds", "0", "--tries", "5"],
            "--rounds and --tries: without --score trained nothing is trained",
        ),
        ([*given[:5], "--score", "trained"], "say with --warm-up in which folder to train"),
    ):
        refused = call("design", *arguments, cwd=tmp_path)
        assert refused.returncode == 2, arguments
        assert words in refused.stderr
        assert not (tmp_path / "r.toml").exists()


def test_how_many_are_scored_is_said_at_the_end_if_not_before() -> None:
    said = io.StringIO()
    lines = ScoredLines(Terminal(file=said))
    lines(1, 2)
    assert said.getvalue() == ""
    lines(2, 2, ", best 0.5000: width = 1")
    assert said.getvalue() == "2 of 2 members scored, 0 s left, best 0.5000: width = 1\n"


def test_what_is_stopped_says_how_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as raised, goes_on_later():
        raise KeyboardInterrupt
    assert raised.value.exit_code == EXIT_INTERRUPTED
    assert capsys.readouterr().err == "stopped; the same command goes on from here\n"
