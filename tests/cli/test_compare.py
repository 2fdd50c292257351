"""The command `nefl compare` on runs of its own."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nefl.cli.app import app
from nefl.errors import ConfigError, RunError
from nefl.running.lifecycle import train


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of one run."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        train(
            {
                "seed": seed,
                "rounds": 2,
                "data": {"name": "digits", "train": 100, "test": 50},
                "clients": {"count": 5, "per_round": 2},
                "local": {"epochs": 1},
                "server": {"evaluate_every": 1},
                "engine": {"name": "serial", "device": "cpu"},
            },
            folder / f"s{seed}",
        )
    return folder


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_seeds_become_a_row(runs: Path) -> None:
    told = invoke("compare", runs, "--target", "0.05")
    assert "resnet8, digits, iid, 2 of 5 clients a round, 2 rounds" in told
    assert "nefl-wd" in told
    assert "±" in told


def test_json_agrees_with_the_summaries(runs: Path) -> None:
    (row,) = json.loads(invoke("compare", runs, "--json"))["rows"]
    summaries: list[dict[str, Any]] = [
        json.loads((runs / f"s{seed}" / "summary.json").read_text()) for seed in (0, 1)
    ]
    for measure in ("worst", "average", "best"):
        assert row[measure]["values"] == [summary[measure] for summary in summaries]
    sent = [summary["bytes_down"] + summary["bytes_up"] for summary in summaries]
    assert row["bytes"]["values"] == sent
    assert row["macs"]["mean"] > 0


def test_the_file_name_tells_the_format(runs: Path, tmp_path: Path) -> None:
    for suffix, start in ((".md", "resnet8"), (".tex", r"\begin{table}"), (".csv", "section,")):
        invoke("compare", runs, "-o", tmp_path / f"table{suffix}")
        assert (tmp_path / f"table{suffix}").read_text().startswith(start)
    with pytest.raises(ConfigError, match="table.doc: give a name that ends with .md"):
        invoke("compare", runs, "-o", tmp_path / "table.doc")


def test_what_is_no_run_is_noted_or_refused(runs: Path, tmp_path: Path) -> None:
    assert "left out:" in invoke("compare", runs / "s0", tmp_path)
    with pytest.raises(RunError, match="is no run's folder"):
        invoke("compare", tmp_path)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        invoke("compare", runs, "--target", "40")


def test_tables_of_members_are_written_for_programs(runs: Path) -> None:
    header, line = invoke("compare", runs, "--members", "--format", "csv").splitlines()
    found = dict(zip(header.split(","), line.split(","), strict=True))
    summaries = [json.loads((runs / f"s{seed}" / "summary.json").read_text()) for seed in (0, 1)]
    firsts = [summary["metrics"]["accuracy"][0] for summary in summaries]
    assert float(found["submodel_1"]) == pytest.approx(sum(firsts) / 2)
    assert found["seeds"] == "2"
    assert "worst" not in found
    (row,) = json.loads(invoke("compare", runs, "--members", "--json"))["rows"]
    assert row["submodels"]["1"]["values"] == firsts


@pytest.mark.parametrize("other", [["--wide"], ["--target", "0.1"], ["--paper"]])
def test_what_tables_of_members_have_no_place_for_is_refused(runs: Path, other: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"^{other[0]} and --members: .* leave one out"):
        invoke("compare", runs, "--members", *other)
