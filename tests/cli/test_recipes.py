"""`nefl recipes` and `nefl train --dry-run`, as a person and as a program would use them."""

import json
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nefl.cli.app import app
from nefl.cli.dry_run import show_work
from nefl.config.reading import config_from
from nefl.errors import ConfigError
from nefl.recipes import load_recipe, recipe_names

from .conftest import call


def listed(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call("recipes", *arguments, "--json").stdout)
    return found


def test_all_are_listed_with_their_figures() -> None:
    shown = call("recipes").stdout
    assert all(name in shown for name in recipe_names())
    assert f"{len(recipe_names())} of {len(recipe_names())} recipes" in shown
    row = next(r for r in shown.splitlines() if "paper-cifar10-resnet18-nefl-wd " in r)
    assert row.split()[1:5] == ["10/100", "500", "86.86", "87.88"]
    assert "Table 3" in row


def test_filters() -> None:
    assert set(listed("--source", "table 11")) == set(listed("severe"))
    few = listed("--method", "nefl-d", "--model", "resnet34", "--data", "cifar10", "--fresh")
    assert list(few) == ["paper-cifar10-resnet34-nefl-d", "paper-cifar10-resnet34-nefl-d-dirichlet"]
    assert list(listed("PAPER", "vit", "Table 6", "--partition", "iid", "--pretrained")) == [
        "paper-cifar10-vit_b_16-nefl-d-pretrained"
    ]
    assert listed("digits")["digits"]["data"]["name"] == "digits"
    assert "0 of" in call("recipes", "nothing-is-called-so").stdout


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--method", "nefl_wd", "method 'nefl_wd' is unknown; did you mean 'nefl-wd'? "),
        ("--model", "nope", "model.name 'nope' is unknown. There are: conv1d, "),
        ("--data", "mnist", "There are: breast-cancer, cifar10, "),
        ("--partition", "", "partition.kind '' is unknown"),
        ("--source", "Table 1", "There are: Figure 6, Figure 7, Figure 8, Table 3, "),
    ],
)
def test_a_filter_that_no_recipe_has_is_an_error_that_lists_what_there_is(
    flag: str, value: str, words: str
) -> None:
    result = CliRunner().invoke(app, ["recipes", flag, value, "--json"])
    assert isinstance(result.exception, ConfigError)
    assert words in str(result.exception)
    assert result.stdout == ""


def test_one_is_shown_in_full(tmp_path: Path) -> None:
    text = call("recipes", "--show", "paper-svhn-resnet18-fjord").stdout
    assert config_from(tomllib.loads(text)) == load_recipe("paper-svhn-resnet18-fjord")
    assert json.loads(call("recipes", "--show", "digits", "--json").stdout)["rounds"] == 60
    wrong = call("recipes", "--show", "paper-svhn-resnet18-fjort")
    assert wrong.returncode == 2
    assert "did you mean paper-svhn-resnet18-fjord" in wrong.stderr


def test_a_dry_run_tells_the_cost_and_starts_nothing(tmp_path: Path) -> None:
    result = call("train", "digits", "--dry-run", "--rounds", "7", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "7 rounds" in result.stdout
    for word in ("client memory", "server memory", "traffic", "work", "time here"):
        assert word in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "recipe",
    [
        "paper-cifar10-resnet18-heterofl",
        "paper-cifar10-vit_b_16-nefl-d-pretrained",
        "paper-cifar10-wide_resnet101_2-nefl-d-pretrained-dirichlet",
    ],
)
def test_a_dry_run_without_data_and_weights(recipe: str, tmp_path: Path) -> None:
    began = time.monotonic()
    result = call("train", recipe, "--dry-run", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert time.monotonic() - began < 100  # seconds; about ten where nothing else runs
    report = json.loads(result.stdout)
    assert report["recipe"] == recipe
    assert report["seconds"] > 3600
    assert report["submodels"][0]["measured"]
    assert all(each["step_seconds"] > 0 for each in report["submodels"])
    assert any("cifar10 is not here" in note for note in report["notes"])
    lacking = any("weights/" in note for note in report["notes"])
    assert lacking == ("pretrained" in recipe)
    assert report["config"]["model"]["name"] in recipe


def test_a_dry_run_of_what_cannot_be() -> None:
    result = call("train", "digits", "--dry-run", "--set", "model.name=resnet9")
    assert result.returncode == 2
    assert "resnet9" in result.stderr


def test_large_numbers_for_people() -> None:
    assert show_work(3.2766e15) == "3.28 PMACs"
    assert show_work(2e18) == "2.00 EMACs"
    assert show_work(5e9) == "5.00 GMACs"
