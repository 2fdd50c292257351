"""A trained family as the start of the next run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import nefl
from nefl.artifacts.notes import read_log, stored_config
from nefl.config.reading import config_from, with_settings
from nefl.elastic.adopt import cut, norm_statistics
from nefl.engines.serial import SerialEngine
from nefl.errors import ConfigError
from nefl.export.source import open_run
from nefl.running.assembly import assemble
from nefl.running.first_state import _batches, first_state


def setting_of(values: dict[str, Any], **changes: Any) -> Any:
    return assemble(
        config_from(with_settings(values, {k.replace("__", "."): v for k, v in changes.items()}))
    )


def test_the_same_family_goes_on_where_it_was(quick: dict[str, Any], digits_run: Path) -> None:
    setting = setting_of(quick, model__start=str(digits_run))
    state = first_state(setting).state
    old = open_run(digits_run).state
    assert state.round_number == 0
    for name, tensor in old.shared.items():
        assert torch.equal(state.shared[name], tensor), name
    steps = [n for n in old.per_submodel[1] if n.endswith("step_size.value")]
    assert steps
    for name in steps:
        assert torch.equal(state.per_submodel[1][name], old.per_submodel[1][name])


def test_the_old_runs_data_is_not_needed(
    quick: dict[str, Any], digits_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = setting_of(quick, model__start=str(digits_run))
    monkeypatch.delattr("nefl.running.first_state.assemble")
    assert first_state(setting).source is not None


@pytest.mark.parametrize("source", ["run", "file"])
def test_other_submodels_are_cut_and_their_norms_recalibrated(
    quick: dict[str, Any], digits_run: Path, elastic_file: Path, source: str
) -> None:
    start = digits_run if source == "run" else elastic_file
    setting = setting_of(quick, model__start=str(start), model__ratios=[0.3, 0.7, 1.0])
    state = first_state(setting).state
    accuracy = [
        e.values["accuracy"]
        for e in SerialEngine(setting.site(), setting.family).evaluate(state, range(1, 4))
    ]
    # As good as it was, and better than chance where a submodel is new: no round was trained.
    trained = json.loads((digits_run / "summary.json").read_text())["metrics"]["accuracy"]
    assert accuracy[2] > trained[4] - 0.1
    assert accuracy[1] > 0.15
    small = setting.family.build(setting.family.specs[0])
    small.load_state_dict(nefl.extract(state, setting.family, 1))
    batches = list(_batches(setting))
    found = norm_statistics(small, batches)
    for name, tensor in found.items():
        torch.testing.assert_close(state.per_submodel[0][name], tensor)


def test_rows_of_the_classifier_go_by_the_names_of_classes(
    quick: dict[str, Any], digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    (tmp_path / "moreclasses.py").write_text(
        "import numpy as np\n"
        "def data():\n"
        "    rng = np.random.default_rng(0)\n"
        "    images = rng.integers(0, 256, (240, 1, 8, 8), dtype=np.uint8)\n"
        "    labels = np.arange(240) % 12\n"
        "    names = ['new', '1', '0', *map(str, range(2, 10)), 'other']\n"
        "    return dict(x_train=images, y_train=labels, x_test=images[:48],\n"
        "                y_test=labels[:48], class_names=names)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    values = {**quick, "data": {"name": "moreclasses:data"}}
    setting = setting_of(values, model__start=str(digits_run))
    state = first_state(setting).state
    old = open_run(digits_run).state.shared
    assert state.shared["fc.weight"].shape[0] == 12
    assert torch.equal(state.shared["fc.weight"][1], old["fc.weight"][1])
    assert torch.equal(state.shared["fc.weight"][2], old["fc.weight"][0])
    assert torch.equal(state.shared["fc.bias"][10], old["fc.bias"][9])
    fresh = setting.family.initial_state(setting.config.seed).shared
    assert torch.equal(state.shared["fc.weight"][0], fresh["fc.weight"][0])


def test_a_run_started_from_another_says_so(
    quick: dict[str, Any], elastic_file: Path, tmp_path: Path
) -> None:
    quick["model"]["start"] = str(elastic_file)
    result = nefl.train({**quick, "rounds": 1}, tmp_path / "run")
    (event,) = [e for e in read_log(result.path) if e["event"] == "started_from"]
    assert event["path"] == str(elastic_file)
    assert event["fresh"] == []
    assert nefl.resume(result.path).summary["state_sha256"] == result.summary["state_sha256"]


def test_any_spec_whose_corners_exist_can_be_cut(digits_run: Path, elastic_file: Path) -> None:
    source, trained = open_run(digits_run), nefl.load(elastic_file)
    inputs, labels = source.test_batch(100)
    batches = list(torch.split(source.training_batch(400), 100))
    spec = nefl.SubmodelSpec(trained.family.specs[-1].blocks, 0.97)
    module = cut(trained, spec, batches)
    found = float((module(inputs).argmax(1) == labels).float().mean())
    assert spec not in trained.family.specs
    assert found > 0.2
    as_full = nefl.SubmodelSpec(spec.blocks, 0.99)  # so wide that no channel is left out
    assert cut(trained, as_full, batches)(inputs).shape == (100, 10)
    with pytest.raises(nefl.NeflError, match="blocks"):
        cut(trained, nefl.SubmodelSpec(((1.0, 1.0), (1.0,), (1.0,))), batches)


def test_what_has_no_corner_there_is_named(
    quick: dict[str, Any], digits_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="layer1.1.conv1.weight is needed with shape"):
        first_state(setting_of(quick, model__start=str(digits_run), model__name="resnet20"))
    with pytest.raises(ConfigError, match="neither a run's folder nor an elastic file"):
        first_state(setting_of(quick, model__start=str(tmp_path / "no")))


def test_every_task_goes_on_where_it_was(task_runs: dict[str, Path]) -> None:
    for kind in ("next-token", "table-regression", "series-classification"):
        run = task_runs[kind]
        setting = setting_of(stored_config(run).to_dict(), model__start=str(run))
        found = first_state(setting)
        assert found.source is not None
        assert found.source["fresh"] == [], kind
        old = open_run(task_runs[kind]).state
        for name, tensor in old.shared.items():
            assert torch.equal(found.state.shared[name], tensor), (kind, name)


def test_a_classifier_of_texts_starts_from_a_completer(task_runs: dict[str, Path]) -> None:
    """It has a token more, the padding, and other outputs: those rows alone are fresh."""
    values = stored_config(task_runs["text-classification"]).to_dict()
    setting = setting_of(values, model__start=str(task_runs["next-token"]))
    found = first_state(setting)
    old = open_run(task_runs["next-token"]).state.shared
    fresh = setting.initial_state().shared
    tokens = found.state.shared["model.embed_tokens.weight"]
    assert torch.equal(tokens[:256], old["model.embed_tokens.weight"])
    assert torch.equal(tokens[256:], fresh["model.embed_tokens.weight"][256:])
    assert torch.equal(found.state.shared["lm_head.weight"], fresh["lm_head.weight"])
    assert found.source is not None
    assert found.source["fresh"] == ["lm_head.weight", "model.embed_tokens.weight"]


def test_inputs_that_mean_something_else_are_refused(
    task_runs: dict[str, Path], digits_run: Path, tmp_path: Path
) -> None:
    diabetes = stored_config(task_runs["table-regression"]).to_dict()
    for start in (task_runs["table-classification"], digits_run, task_runs["next-token"]):
        with pytest.raises(ConfigError, match="model.start: what it names"):
            first_state(setting_of(diabetes, model__start=str(start)))
    # As many columns, in another order.
    names = ["sex", "age", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6"]
    for start in (task_runs["table-regression"], tmp_path / "e"):
        if start.name == "e":
            nefl.export_family(task_runs["table-regression"], start, examples=10)
        turned = setting_of(diabetes, model__start=str(start), data__options={"features": names})
        with pytest.raises(ConfigError, match="same columns in the same order"):
            first_state(turned)
