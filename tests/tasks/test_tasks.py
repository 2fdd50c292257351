"""Tasks of every kind, from their data to a trained family."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nefl
from nefl.artifacts.checkpoint import state_sha256
from nefl.config.reading import config_from
from nefl.nesting.signature import Signature
from nefl.references import named_code
from nefl.tasks.finding import load_task
from nefl.tasks.task import rows_of

EXAMPLES = Path(__file__).parents[2] / "examples"


def short(name: str, model: str, **options: Any) -> dict[str, Any]:
    return {
        "rounds": 2,
        "model": {"name": model},
        "data": {"name": name, "options": options},
        "clients": {"count": 12, "per_round": 2},
        "local": {"epochs": 1, "batch_size": 16, "learning_rate": 0.01},
        "engine": {"name": "serial", "device": "cpu"},
    }


TINY_TEXT = {"length": 16, "most": 6}
KINDS = {
    "table-classification": short("breast-cancer", "mlp"),
    "table-regression": short("diabetes", "mlp"),
    "series-classification": short("digit-strokes", "conv1d")
    | {"clients": {"count": 20, "per_round": 2}},
    "next-token": short("stdlib", "decoder_tiny", **TINY_TEXT),
    "text-classification": short("stdlib-packages", "decoder_tiny", **TINY_TEXT),
}


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_trains_alike_in_processes(kind: str, tmp_path: Path) -> None:
    settings = KINDS[kind]
    alone = nefl.train(settings, tmp_path / "alone")
    workers = {"engine": {"name": "workers", "workers": 2, "device": "cpu"}}
    together = nefl.train(settings | workers, tmp_path / "together")
    assert alone.summary["state_sha256"] == together.summary["state_sha256"]
    assert alone.summary["metrics"] == together.summary["metrics"]
    run = nefl.read_run(alone.path)
    assert run.facts is not None
    assert run.facts.kind == kind
    measured = nefl.evaluate(alone.path)
    primary = alone.summary["metric"]
    assert [e.values[primary] for e in measured] == list(alone.summary["metrics"][primary])
    best = min if run.facts.metrics[0].better == "down" else max
    assert alone.summary["best"] == best(alone.summary["metrics"][primary])


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("round*.safetensors"))


def points(count: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 6))  # float64, as numpy makes it
    return {"x": x, "y": (x[:, 0] * x[:, 1] > 0).astype(np.int8), "who": rng.integers(0, 5, count)}


def in_memory(**changes: Any) -> nefl.Task:
    parts: dict[str, Any] = {
        "name": "quadrants",
        "train": points(200, 0),
        "test": points(60, 1),
        "signature": Signature((6,), 2),
        "inputs": "x",
        "target": "y",
        "loss": "cross-entropy",
        "metrics": ("accuracy",),
        "labels": "y",
        "class_names": ("no", "yes"),
        "owner": "who",
    }
    return nefl.Task(**parts | changes)


def own(engine: str) -> dict[str, Any]:
    return {
        "rounds": 3,
        "model": {"name": "mlp"},
        "partition": {"kind": "owner"},
        "clients": {"count": 5, "per_round": 3},
        "engine": {"name": engine, "device": "cpu"},
        "server": {"checkpoint_every": 1},
    }


@pytest.mark.usefixtures("forked_workers")
def test_arrays_in_memory_train_in_workers_and_are_found_again(tmp_path: Path) -> None:
    alone = nefl.train(own("serial"), tmp_path / "alone", task=in_memory())
    together = nefl.train(own("workers"), tmp_path / "together", task=in_memory())
    assert state_sha256(alone.state) == state_sha256(together.state)
    assert nefl.evaluate(alone.path)[0].values["accuracy"] == alone.summary["worst"]
    checkpoints(tmp_path / "alone")[-1].unlink()
    (tmp_path / "alone/summary.json").unlink()
    again = nefl.resume(alone.path)
    assert again.summary["state_sha256"] == alone.summary["state_sha256"]


def twice(rows: Any, _generator: torch.Generator | None) -> torch.Tensor:
    doubled: torch.Tensor = rows["x"].float() * 2
    return doubled


def test_functions_in_memory_stay_in_their_process(tmp_path: Path) -> None:
    task = in_memory(inputs=twice)
    with pytest.raises(nefl.ConfigError, match="which workers cannot be given"):
        nefl.train(own("workers"), tmp_path / "workers", task=task)
    done = nefl.train(own("auto"), tmp_path / "auto", task=task)
    with pytest.raises(nefl.ConfigError, match="give it again"):
        nefl.evaluate(done.path)
    assert nefl.evaluate(done.path, task=task)[0].values["accuracy"] == done.summary["worst"]
    with pytest.raises(nefl.RunError, match="data"):
        nefl.resume(done.path, task=in_memory(inputs=twice, train=points(200, 9)))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"inputs": "z"}, "inputs is column 'z'; there are x, y, who"),
        ({"loss": "hinge"}, "loss 'hinge' is unknown"),
        ({"metrics": ("accurate",)}, "metric 'accurate' is unknown"),
        ({"metrics": ()}, "name a metric"),
        ({"test": {"x": np.zeros((3, 6))}}, "train and test differ in columns"),
        (
            {"train": {"x": np.zeros((3, 6)), "y": np.zeros(2), "who": np.zeros(3)}},
            "unequal lengths",
        ),
    ],
)
def test_a_task_that_cannot_be_learned_says_why(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(nefl.NeflError, match=complaint):
        in_memory(**changes)


def test_metrics_of_a_run_and_a_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_metrics.py").write_text(
        textwrap.dedent("""
        import nefl, torch
        def sums(outputs, target):
            return torch.tensor([float((outputs.argmax(1) != target).sum()), len(target)])
        errors = nefl.Metric("errors", "down", sums, lambda sums: sums[0])
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = KINDS["table-classification"] | {"metrics": ["own_metrics:errors", "f1", "top-5"]}
    done = nefl.train(settings, tmp_path / "run")
    assert done.summary["metric"] == "errors"
    assert done.summary["best"] == min(done.summary["metrics"]["errors"])
    assert set(done.summary["metrics"]) == {"errors", "f1", "top-5"}


def test_one_metric_needs_no_list() -> None:
    assert config_from({"metrics": "f1"}).metrics == ("f1",)
    assert [metric.name for metric in in_memory(metrics="f1").measured] == ["f1"]
    with pytest.raises(nefl.ConfigError, match="metrics is 3"):
        config_from({"metrics": 3})


def test_examples_of_one_class_are_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    train = points(200, 0)
    train["y"][:] = 1
    with pytest.raises(nefl.DataError, match="quadrants: all training examples are of one class"):
        nefl.train(own("serial"), tmp_path / "run", task=in_memory(train=train))
    assert not (tmp_path / "run").exists()


def test_numbers_are_measured_in_their_own_units(tmp_path: Path) -> None:
    """A model that says the mean has the mean's error, in the units of the file."""
    config = config_from(KINDS["table-regression"])
    task = load_task(config)
    rows = rows_of(task.test, np.arange(task.test_examples))
    target = task.make_target(rows)
    error = task.measured[0].value(task.measure(task.primary, torch.zeros(len(target), 1), target))
    truth = np.asarray(task.test["target"], dtype=np.float64)
    wanted = np.abs(truth - np.asarray(task.train["target"], dtype=np.float64).mean()).mean()
    assert error == pytest.approx(wanted, rel=1e-5)
    assert task.primary.name == "mae"


OWN_RUN = """
import os, signal, sys
sys.path.insert(0, {examples!r})
import nefl
class Die(nefl.Observer):
    def round_done(self, state, report, evaluations):
        if report.round_number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
settings = {{"task": "own_task:ranges", "model": {{"name": "mlp"}}, "rounds": 4,
    "clients": {{"count": 10, "per_round": 3}}, "local": {{"learning_rate": 0.02}},
    "server": {{"checkpoint_every": 1}}, "engine": {{"name": {engine!r}, "device": "cpu"}}}}
run, what = sys.argv[1:]
if what == "resume":
    done = nefl.resume(run)
else:
    done = nefl.train(settings, run, observers=[Die()] if what == "die" else [])
print(done.summary["state_sha256"])
"""


@pytest.mark.long
@pytest.mark.parametrize("engine", ["serial", "workers"])
def test_the_example_of_ones_own_task_survives_a_kill(engine: str, tmp_path: Path) -> None:
    script = OWN_RUN.format(examples=str(EXAMPLES), engine=engine)

    def go(run: str, what: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", script, str(tmp_path / run), what]
        return subprocess.run(command, capture_output=True, text=True, timeout=180)

    assert go("killed", "die").returncode == -signal.SIGKILL
    again, whole = go("killed", "resume"), go("whole", "train")
    assert again.returncode == whole.returncode == 0, again.stderr + whole.stderr
    assert again.stdout == whole.stdout != ""


def half_of_each(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs, target, reduction="none")


def half(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs, target) / 2


def third(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs, target) / 3


def test_another_loss_in_memory_is_another_run(tmp_path: Path) -> None:
    done = nefl.train(own("serial"), tmp_path / "run", task=in_memory(loss=half))
    nefl.resume(done.path, task=in_memory(loss=half))
    with pytest.raises(nefl.RunError, match="data"):
        nefl.resume(done.path, task=in_memory(loss=third))


def test_names_that_mean_something_else_are_refused() -> None:
    twin = nefl.Metric("accuracy", "up", lambda *_: torch.zeros(2), lambda _: 0.0)
    with pytest.raises(nefl.ConfigError, match="two metrics are called 'accuracy'"):
        in_memory(metrics=("accuracy", twin))
    taken = nefl.Metric("best", "up", lambda *_: torch.zeros(2), lambda _: 0.0)
    with pytest.raises(nefl.ConfigError, match="cannot be called 'best'"):
        in_memory(metrics=(taken,))
    with pytest.raises(nefl.ConfigError, match=r"facts\['n'\] is no plain value"):
        in_memory(facts={"n": np.float32(1)})
    named = config_from({"task": "given", "data": {"name": "lab: toy"}})
    assert named_code(named) == ()


def test_targets_that_the_loss_passes_over_are_not_measured() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [5.0, 0.0]])
    target = torch.tensor([0, 0, -100])
    task = in_memory(metrics=("accuracy", "cross-entropy", "f1"))
    found = {m.name: m.value(task.measure(m, logits, target)) for m in task.measured}
    assert found["accuracy"] == 0.5
    assert found["cross-entropy"] == pytest.approx(float(task.loss_of(logits, target)))
    assert found["f1"] == pytest.approx((2 / 3 + 0) / 2)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"metrics": ("mae",)}, "metric mae: is of numbers"),
        ({"labels": "x"}, "expected a whole number for each example"),
        ({"class_names": ("no",)}, "go from 0 to 1; class_names has 1 name"),
        ({"signature": Signature((7,), 2)}, "a step of submodel 1 failed"),
        ({"loss": half_of_each}, "step"),
    ],
)
def test_what_does_not_fit_is_told_before_a_run(
    changes: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(nefl.NeflError, match=complaint):
        nefl.train(own("serial"), tmp_path / "run", task=in_memory(**changes))
    assert not (tmp_path / "run").exists()


def test_columns_may_be_lists_and_tensors(tmp_path: Path) -> None:
    given = {"x": torch.zeros(8, 6), "y": [0, 1] * 4, "who": [0, 1, 2, 3, 4, 0, 1, 2]}
    task = in_memory(train=given, test=given)
    assert task.train["y"].dtype == np.int64
    with pytest.raises(nefl.DataError, match="column 'y' holds list"):
        in_memory(train={**given, "y": ["a"] * 8})
    with pytest.raises(nefl.ConfigError, match="dict is none"):
        nefl.train(own("serial"), tmp_path / "run", task={})  # type: ignore[arg-type]
    with pytest.raises(nefl.ConfigError, match="leave them out"):
        nefl.train(own("serial") | {"data": {"root": "x"}}, tmp_path / "run", task=in_memory())


def test_accuracy_is_not_of_numbers() -> None:
    settings = KINDS["table-regression"] | {"metrics": ["accuracy"]}
    with pytest.raises(nefl.ConfigError, match="metric accuracy: is of classes"):
        nefl.train(settings)
