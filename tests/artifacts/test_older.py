"""Folders of older versions are read as if they had been written today."""

import json
from pathlib import Path

from nefl.artifacts.facts import read_facts
from nefl.artifacts.notes import read_log, stored_config
from nefl.artifacts.older import ACCURACY, settings_as_now
from nefl.artifacts.summary import averages
from nefl.config import RunConfig
from nefl.nesting.signature import Signature

FACTS = {
    "class_names": ["cat", "dog"],
    "input_shape": [3, 8, 8],
    "train_examples": 10,
    "test_examples": 5,
    "label_counts": [[1, 2]],
    "submodels": [],
}


def test_a_log_without_metrics_has_accuracies(tmp_path: Path) -> None:
    lines = [
        {"event": "start", "round": 0},
        {"event": "round", "round": 1, "accuracy": [0.5, 0.75]},
        {"event": "round", "round": 2, "metrics": {"perplexity": [7.0, 5.0]}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert list(read_log(tmp_path))[1:] == [
        {"event": "round", "round": 1, "metrics": {"accuracy": [0.5, 0.75]}},
        lines[2],
    ]
    assert averages(tmp_path, 2, ACCURACY.name) == [0.625]  # by which a resumed run knows its best


def test_facts_without_a_signature_are_of_images(tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text(json.dumps(FACTS))
    facts = read_facts(tmp_path)
    assert facts is not None
    assert facts.signature == Signature((3, 8, 8), 2)
    assert (facts.kind, facts.metrics) == ("image-classification", (ACCURACY,))
    assert facts.label_counts == ((1, 2),)


def test_damaged_facts_of_an_older_version_are_none(tmp_path: Path) -> None:
    for key, value in (("input_shape", "wide"), ("class_names", 3), ("class_names", [])):
        (tmp_path / "facts.json").write_text(json.dumps(FACTS | {key: value}))
        assert read_facts(tmp_path) is None


def test_a_step_that_was_the_methods_is_left_to_it(tmp_path: Path) -> None:
    """A run of an earlier version says `mean` where nothing was asked for."""
    settings = RunConfig().to_dict()
    settings["model"]["method"] = "nefl-co-wd"
    settings["server"]["step"]["name"] = "mean"
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert stored_config(tmp_path).server.step.name == "auto"
    for other in ({}, {"server": 3}, {"server": {"step": "mean"}}):
        assert settings_as_now(dict(other)) == other
    settings["server"]["step"]["name"] = "momentum"
    assert settings_as_now(settings) == settings
