"""Texts, tables and series: exported from tiny runs, compared in each runtime, and asked."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nefl
from nefl.asking.way import read_file
from nefl.export.compare import Comparison, check
from nefl.export.formats import FORMATS, open_model
from nefl.export.source import open_run, predict_batches
from nefl.measured import MeasuredBy
from nefl.serving.predictor import Predictor

CASES = [
    *[
        pytest.param("next-token", name, marks=pytest.mark.long if name == "executorch" else ())
        for name, form in FORMATS.items()
        if not form.is_folder
    ],
    ("text-classification", "onnx"),
    ("text-classification", "torch-export"),
    ("table-classification", "onnx"),
    ("table-regression", "onnx"),
    ("series-classification", "onnx"),
    ("series-classification", "torch-export"),
]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_format(task_runs: dict[str, Path], kind: str, name: str, tmp_path: Path) -> None:
    run, out = task_runs[kind], tmp_path / f"m{FORMATS[name].suffix}"
    done = nefl.export_submodel(run, out, submodel=1, examples=20, measure=False)
    assert done.comparison.difference < 1e-4
    assert done.comparison.agreement == (None if kind == "table-regression" else 1)
    assert done.plain.steps_left == 0
    source, opened = open_run(run), open_model(out)
    task, card = source.setting.task, opened.card
    inputs, _ = source.test_batch(3)
    wanted = predict_batches(source.submodel(1), inputs)
    torch.testing.assert_close(predict_batches(opened, inputs), wanted, rtol=0, atol=1e-4)
    assert (card.kind, card.signature, card.class_names) == (kind, task.signature, task.class_names)
    assert [m.name for m in card.metrics] == [m.name for m in task.measured]
    assert card.primary.name == {"next-token": "perplexity", "table-regression": "mae"}.get(
        kind, "accuracy"
    )
    assert card.submodels[0].values == pytest.approx(done.comparison.values)
    assert "owners" not in card.facts


@pytest.mark.parametrize("kind", ["next-token", "table-regression", "series-classification"])
def test_the_whole_family_in_one_file(
    task_runs: dict[str, Path], kind: str, tmp_path: Path
) -> None:
    done = nefl.export_family(task_runs[kind], tmp_path / "e", examples=20)
    assert len(done.comparisons) == 2
    assert all(found.difference < 1e-5 for found in done.comparisons)
    again = nefl.load(tmp_path / "e")
    source = open_run(task_runs[kind])
    inputs, _ = source.test_batch(3)
    for number in (1, 2):
        wanted = predict_batches(source.submodel(number), inputs)
        torch.testing.assert_close(predict_batches(again.model(number), inputs), wanted)
    spec = nefl.SubmodelSpec(again.family.specs[-1].blocks, 0.9)
    module = nefl.cut(again, spec, [source.training_batch(16)])
    assert module(inputs).shape == wanted.shape


def test_answers_come_from_the_file_alone(task_runs: dict[str, Path], tmp_path: Path) -> None:
    """What a predictor makes of test examples as users give them is what the trained model says."""
    for kind in ("table-classification", "table-regression", "series-classification"):
        nefl.export_family(task_runs[kind], tmp_path / kind, examples=20)
        source, predictor = open_run(task_runs[kind]), Predictor(tmp_path / kind)
        task = source.setting.task
        rows = {name: torch.from_numpy(np.array(column[:3])) for name, column in task.test.items()}
        wanted = predict_batches(source.submodel(2), task.make_inputs(rows))
        if kind.startswith("series"):
            np.save(tmp_path / "x.npy", rows["series"].numpy())
            data = read_file(tmp_path / "x.npy")
        else:
            names = [column["name"] for column in task.facts["columns"]]
            data = json.dumps(
                [dict(zip(names, row, strict=True)) for row in rows["features"].tolist()]
            ).encode()
        found = predictor(data)
        if kind.endswith("regression"):
            assert task.restore is not None
            values = [answer.values["value"] for answer in found.answers]
            assert values == pytest.approx(task.restore(wanted).flatten().tolist(), rel=1e-4)
        else:
            best = [answer.values["class"] for answer in found.answers]
            assert best == [task.class_names[place] for place in wanted.argmax(1).tolist()]
        assert found.submodel == 2


@pytest.mark.long
def test_a_text_is_completed_alike_by_every_runtime(
    task_runs: dict[str, Path], tmp_path: Path
) -> None:
    run = task_runs["next-token"]
    said = []
    for name in ("onnx", "safetensors"):
        out = tmp_path / f"m{FORMATS[name].suffix}"
        nefl.export_submodel(run, out, submodel=2, examples=10, measure=False)
        said.append(Predictor(out)(b"the cat sees").answers[0].values["text"])
    assert said[0] == said[1]
    assert len(said[0]) > 10


def compared(better: Any, value: float, trained: float, *, percent: bool = False) -> Comparison:
    metric = MeasuredBy("m", better, percent=percent)
    return Comparison(10, 0.5, None, metric, {"m": value}, {"m": trained}, 1e-4)


def test_what_int8_may_lose_follows_the_metric_and_its_direction() -> None:
    assert compared("up", 0.7, 0.75, percent=True).loss == pytest.approx(0.05)
    assert compared("down", 21.0, 20.0).loss == pytest.approx(0.05)
    assert compared("down", 19.0, 20.0).loss < 0
    check(compared("down", 20.9, 20.0), quantized=True)
    for bad in (
        compared("down", 22.0, 20.0),
        compared("up", 0.6, 0.7, percent=True),
        compared("down", float("nan"), 20.0),
        compared("down", 1.0, 0.0),
    ):
        with pytest.raises(nefl.RunError, match="int8 loses .* of m "):
            check(bad, quantized=True)


def _own_task() -> nefl.Task:
    """Two numbers from three, given in memory with functions of its own."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(120, 3)).astype(np.float32)
    columns = {"numbers": numbers, "both": numbers[:, :2] * 2}
    error = nefl.Metric(
        "error", "down", lambda o, t: torch.stack(((o - t).abs().sum().double(), torch.tensor(
            float(t.numel()), dtype=torch.float64))), lambda sums: sums[0] / sums[1],
    )  # fmt: skip
    return nefl.Task(
        "numbers",
        {name: column[:80] for name, column in columns.items()},
        {name: column[80:] for name, column in columns.items()},
        nefl.Signature((3,), 2),
        "numbers",
        "both",
        lambda outputs, target: (outputs - target).square().mean(),
        (error,),
        facts={"unit": "mm"},
    )


def test_a_task_of_one_s_own_takes_and_gives_arrays(tmp_path: Path) -> None:
    settings = {
        "rounds": 1,
        "model": {"name": "mlp", "ratios": [0.3, 1.0]},
        "clients": {"count": 4, "per_round": 2},
        "local": {"epochs": 1, "learning_rate": 0.01},
        "engine": {"name": "serial", "device": "cpu"},
    }
    task = _own_task()
    run = nefl.train(settings, tmp_path / "run", task=task).path
    done = nefl.export_submodel(
        run, tmp_path / "m.onnx", submodel=1, examples=10, measure=False, task=task
    )
    assert (done.card.kind, done.card.facts) == ("own", {"unit": "mm"})
    assert done.comparison.metric.name == "error"
    predictor = Predictor(tmp_path / "m.onnx")
    wanted = open_run(run, task=task).submodel(1)(torch.from_numpy(task.test["numbers"][:2]))
    found = predictor(json.dumps(task.test["numbers"][:2].tolist()).encode())
    told = [answer.values["outputs"] for answer in found.answers]
    torch.testing.assert_close(torch.tensor(told), wanted, rtol=0, atol=1e-4)
    with pytest.raises(nefl.DataError, match=r"expected \(3,\)"):
        predictor(b"[1, 2]")
