"""What a run notes of itself, so that its folder can be read without its data or its code."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from nefl.artifacts.facts import Facts, read_facts, write_facts
from nefl.artifacts.notes import read_log
from nefl.artifacts.older import ACCURACY
from nefl.nesting.signature import Signature
from nefl.report.reading.costs import costs_of
from nefl.report.reading.rebuilt import profiles_again
from nefl.report.reading.runs import read_run
from nefl.rounds import Observer, RoundReport
from nefl.running.lifecycle import train

OWN_MODEL = """
from nefl import make_family

def build(*, classes, input_shape):
    return make_family("resnet8", "nefl-d", classes=classes, input_shape=input_shape)
"""


def test_labels_and_shape_are_noted(quick: dict[str, Any], tmp_path: Path) -> None:
    train(quick | {"rounds": 1}, tmp_path / "run")
    facts = read_facts(tmp_path / "run")
    assert facts is not None
    assert facts.class_names == tuple("0123456789")
    assert facts.signature == Signature((1, 8, 8), 10)
    assert facts.metrics == (ACCURACY,)
    assert sum(map(sum, facts.label_counts)) == facts.train_examples == 200
    assert facts.submodels == profiles_again(read_run(tmp_path / "run"))
    start = next(read_log(tmp_path / "run"))
    assert {"nefl", "torch", "numpy", "python", "machine"} <= start.keys()


def test_facts_are_found_out_once(tmp_path: Path) -> None:
    facts = Facts((), Signature((2,), 1), "regression", (ACCURACY,), 3, 1)
    write_facts(tmp_path, lambda: facts)
    write_facts(tmp_path, lambda: pytest.fail("they are noted already"))
    assert read_facts(tmp_path) == facts


def test_costs_of_an_own_model_are_noted(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "noted_model.py").write_text(OWN_MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    quick["model"] = {"name": "noted_model:build"}
    train(quick | {"rounds": 1}, tmp_path / "run")
    (tmp_path / "noted_model.py").unlink()
    monkeypatch.delitem(sys.modules, "noted_model")
    costs = costs_of(read_run(tmp_path / "run"))
    assert len(costs.profiles) == 5
    assert all(profile.macs_total > 0 for profile in costs.profiles)


def test_damaged_facts_are_none(tmp_path: Path) -> None:
    assert read_facts(tmp_path) is None
    for text in ("{", "[]", json.dumps({"class_names": 3})):
        (tmp_path / "facts.json").write_text(text)
        assert read_facts(tmp_path) is None
    (tmp_path / "facts.json").unlink()
    os.mkfifo(tmp_path / "facts.json")
    assert read_facts(tmp_path) is None, "and nobody waits"


class Failing(Observer):
    """An observer that breaks a run after its first round."""

    def round_done(self, state: object, report: RoundReport, evaluations: object) -> None:
        raise RuntimeError("the roof fell in")


def test_why_a_run_stopped_is_noted(quick: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        train(quick, tmp_path / "run", observers=[Failing()])
    run = read_run(tmp_path / "run")
    assert (run.status, run.stopped) == ("failed", "the roof fell in")
