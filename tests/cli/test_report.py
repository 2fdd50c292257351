"""The commands `nefl report`, `plot` and `watch`."""

import builtins
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nefl.cli.app import app
from nefl.cli.watch import curve
from nefl.errors import ConfigError, RunError
from nefl.running.lifecycle import train


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def run(quick: dict[str, Any], tmp_path: Path) -> Path:
    train(quick | {"rounds": 1}, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.long
def test_report_plot_and_watch(run: Path, tmp_path: Path) -> None:
    assert "1 run)" in invoke("report", run, "-o", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    invoke("plot", run, "--figure", "step-sizes", "-o", tmp_path / "steps.svg")
    assert (tmp_path / "steps.svg").read_text().startswith("<svg")
    invoke("plot", "--figure", "toy-ode", "-o", tmp_path / "toy.pdf")
    assert "finished" in invoke("watch", run, "--terminal")
    invoke("profile", "resnet8", "--figure", tmp_path / "family.svg")
    assert (tmp_path / "family.svg").exists()


def test_what_cannot_be_drawn_is_said(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="figure 'pie': give one of curves"):
        invoke("plot", run, "--figure", "pie")
    with pytest.raises(ConfigError, match="name at least one run"):
        invoke("plot", "--figure", "curves")
    with pytest.raises(ConfigError, match="simulated-time: these runs have nothing to show"):
        invoke("plot", run, "--figure", "simulated-time", "-o", tmp_path / "s.svg")
    with pytest.raises(RunError, match="cannot be written .*name another file with -o"):
        invoke("plot", "--figure", "toy-ode", "-o", tmp_path / "none" / "toy.svg")
    with pytest.raises(RunError, match="is no run's folder"):
        invoke("watch", tmp_path / "nothing")


def test_a_missing_extra_is_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "vl_convert":
            raise ImportError(name)
        return whole(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'nefl\[report\]'"):
        invoke("plot", "--figure", "toy-ode", "-o", tmp_path / "toy.svg")


def test_a_curve_goes_from_low_to_high() -> None:
    assert curve([0.1, 0.2, 0.3]) == "▁▅█"
    assert curve([float("nan")]) == ""
