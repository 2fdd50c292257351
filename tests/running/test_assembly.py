"""Runs that start from a file of weights: identity, resuming, engines."""

from pathlib import Path
from typing import Any

import pytest
import torch

import nefl
from nefl.artifacts.notes import stored_config
from nefl.config.reading import config_from
from nefl.running.assembly import assemble, with_absolute_paths


@pytest.fixture
def weights(quick: dict[str, Any], tmp_path: Path) -> Path:
    """The full model of the quick run, with other values than any seed gives."""
    family = assemble(config_from(quick)).family
    model = family.build(family.specs[-1])
    with torch.no_grad():
        model.get_parameter("fc.bias").fill_(3.0)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    return tmp_path / "weights.pth"


def settings(quick: dict[str, Any], weights: Path, **more: Any) -> dict[str, Any]:
    return quick | {"model": quick["model"] | {"weights": str(weights)}} | more


@pytest.mark.long
def test_a_run_starts_from_its_file_on_every_engine(
    quick: dict[str, Any], weights: Path, tmp_path: Path
) -> None:
    config = config_from(settings(quick, weights))
    assert float(assemble(config).initial_state().shared["fc.bias"][0]) == 3.0
    serial = nefl.train(config, tmp_path / "serial")
    both = settings(quick, weights, engine={"name": "workers", "workers": 2, "device": "cpu"})
    workers = nefl.train(both, tmp_path / "workers")
    fresh = nefl.train(quick, tmp_path / "fresh")
    assert serial.summary["state_sha256"] == workers.summary["state_sha256"]
    assert serial.summary["state_sha256"] != fresh.summary["state_sha256"]


def test_a_changed_file_is_noticed_and_a_moved_one_is_not(
    quick: dict[str, Any], weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nefl.train(settings(quick, Path(weights.name)), "run")
    monkeypatch.chdir("/")
    run = tmp_path / "run"
    assert stored_config(run).model.weights == str(weights)
    nefl.resume(run)
    before = assemble(config_from(settings(quick, weights))).identity()
    moved = weights.rename(tmp_path / "moved.pth")
    assert assemble(config_from(settings(quick, moved))).identity() == before
    torch.save({"fc.bias": torch.zeros(10)}, weights)
    with pytest.raises(nefl.RunError, match="weights changed since the run was started"):
        nefl.resume(run)
    weights.unlink()
    with pytest.raises(nefl.DataError, match="is absent"):
        nefl.resume(run)
    assert nefl.evaluate(run)  # which needs the checkpoint alone


def test_a_file_that_does_not_fit_leaves_no_folder(
    quick: dict[str, Any], weights: Path, tmp_path: Path
) -> None:
    torch.save({"fc.bias": torch.zeros(3)}, weights)
    with pytest.raises(nefl.DataError, match="fc.bias"):
        nefl.train(settings(quick, weights), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_weights_the_identity_is_what_it_was(quick: dict[str, Any]) -> None:
    assert "weights" not in assemble(config_from(quick)).identity()


def test_test_rows_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test.csv").touch()
    values = {"data": {"name": "csv", "root": "train.csv", "options": {"test_root": "test.csv"}}}
    found = with_absolute_paths(config_from(values))
    assert found.data.options["test_root"] == str(tmp_path / "test.csv")
