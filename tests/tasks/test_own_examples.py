"""A node's own examples are learned as the run's are: by name, in the run's units."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nefl.config import RunConfig
from nefl.config.reading import config_from
from nefl.errors import ConfigError, DataError
from nefl.tasks.finding import load_task
from nefl.tasks.own_examples import own_examples
from nefl.tasks.task import Task

TABLE = "age,colour,income\n30,red,low\n40,green,high\n50,blue,high\n20,red,low\n60,green,high\n"
LINES = [{"text": f"a text of {kind}", "label": kind} for kind in ("tea", "rum", "tea") * 4]


def run_on(name: str, root: Path, **options: Any) -> tuple[RunConfig, Task]:
    values = {"data": {"name": name, "root": str(root), "options": options}}
    config = config_from(values)
    return config, load_task(config)


def own(config: RunConfig, run: Task, path: Path, cache: Path) -> Task:
    return own_examples(config, path, cache, run.facts, run.class_names)


def rows_of(task: Task, column: str) -> list[Any]:
    found: list[Any] = np.asarray(task.train[column]).tolist()
    return found


def test_a_nodes_table_has_the_runs_columns_and_classes(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text(TABLE)
    config, run = run_on("csv", tmp_path / "all.csv")
    mine = tmp_path / "mine.csv"
    # Other order, a word nobody has, a gap, and only the class that comes first in the file.
    mine.write_text("income,colour,age\nlow,pink,\nlow,green,33\n")
    found = own(config, run, mine, tmp_path / "cache")
    gap = run.facts["columns"][0]["missing"]
    assert rows_of(found, "features") == [pytest.approx([gap, 0, 0, 0]), [33, 0, 1, 0]]
    assert rows_of(found, "target") == [1, 1]  # "low" of "high", "low"
    assert found.signature == run.signature
    first = found.make_inputs({"features": np_row(found)})
    assert float(first[0, 0]) == pytest.approx((33 - run.facts["mean"][0]) / run.facts["std"][0])
    for content, complaint in (
        ("colour,income\nred,low\n", "has no column 'age'"),
        ("age,colour,income\n1,red,none\n", "there is no class 'none'"),
        ("age,colour,income\nold,red,low\n", "'age' holds words, the run's numbers"),
    ):
        mine.write_text(content)
        with pytest.raises(DataError, match=complaint):
            own(config, run, mine, tmp_path / "cache")


def np_row(task: Task) -> Any:
    import torch

    return torch.tensor(np.asarray(task.train["features"][1:2]))


def test_a_nodes_texts_go_by_the_runs_classes(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)))
    config, run = run_on("json-lines", path, length=16)
    mine = tmp_path / "mine.jsonl"
    mine.write_text(json.dumps({"text": "x", "label": "tea"}) + "\n")
    found = own(config, run, mine, tmp_path / "cache")
    assert rows_of(found, "label") == [1]
    assert rows_of(found, "tokens") == [[ord("x")] + [256] * 15]
    mine.write_text(json.dumps({"text": "x", "label": "gin"}) + "\n")
    with pytest.raises(DataError, match="there is no class 'gin'"):
        own(config, run, mine, tmp_path / "cache")


def test_a_nodes_text_files_become_rows(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    for name in "abc":
        (tmp_path / "all" / f"{name}.txt").write_text(name * 200)
    config, run = run_on("text", tmp_path / "all", length=16)
    (tmp_path / "mine.txt").write_text("z" * 51)
    found = own(config, run, tmp_path / "mine.txt", tmp_path / "cache")
    assert rows_of(found, "tokens") == [[ord("z")] * 17] * 3
    assert found.make_inputs(tensors(found)).shape == (3, 16)


def tensors(task: Task) -> Mapping[str, Any]:
    import torch

    return {name: torch.tensor(np.asarray(c)) for name, c in task.train.items()}


@pytest.mark.parametrize("name", ["series", "npz"])
def test_a_nodes_arrays(name: str, tmp_path: Path) -> None:
    shape = (6, 2, 8) if name == "series" else (6, 2)
    x, y = np.random.default_rng(0).normal(size=shape), np.arange(6) % 3
    np.savez(tmp_path / "all.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    config, run = run_on(name, tmp_path / "all.npz")
    column = "series" if name == "series" else "features"
    np.savez(tmp_path / "mine.npz", x_train=x[:2] + 1, y_train=y[:2])
    found = own(config, run, tmp_path / "mine.npz", tmp_path / "cache")
    np.testing.assert_allclose(found.train[column], x[:2] + 1, rtol=1e-6)
    assert rows_of(found, "target") == [0, 1]
    assert found.facts["mean"] == run.facts["mean"]
    np.savez(tmp_path / "mine.npz", x_train=x[:, :1], y_train=y)
    with pytest.raises(DataError, match="second axis has 2"):
        own(config, run, tmp_path / "mine.npz", tmp_path / "cache")
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y + 1)
    with pytest.raises(DataError, match="labels go beyond 0 to 2"):
        own(config, run, tmp_path / "mine.npz", tmp_path / "cache")

    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y.astype(float))
    with pytest.raises(DataError, match="3 classes are named; give whole numbers"):
        own(config, run, tmp_path / "mine.npz", tmp_path / "cache")


def test_a_nodes_csv_serves_a_run_of_arrays(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(6, 2)), np.arange(6) % 3
    np.savez(tmp_path / "all.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    config, run = run_on("npz", tmp_path / "all.npz")
    mine = tmp_path / "mine.csv"
    mine.write_text("x1,x0,y\n1,2,1\n")
    found = own(config, run, mine, tmp_path / "cache")
    assert (rows_of(found, "features"), rows_of(found, "target")) == ([[2, 1]], [1])
    mine.write_text("x1,x0\n1,2\n")
    with pytest.raises(DataError, match="has no column 'y'"):
        own(config, run, mine, tmp_path / "cache")


def test_large_numbers_are_learned_in_units_of_their_deviation(tmp_path: Path) -> None:
    moments = [1_700_000_000 + 10 * i for i in range(20)]
    (tmp_path / "all.csv").write_text("at,y\n" + "".join(f"{m},{m + 5}.5\n" for m in moments))
    _, run = run_on("csv", tmp_path / "all.csv")
    rows = tensors(run)
    inputs, target = run.make_inputs(rows), run.make_target(rows)
    assert len(set(inputs[:, 0].tolist())) == len(set(target.tolist())) == 16
    assert run.restore is not None
    np.testing.assert_allclose(run.restore(target), run.train["target"], rtol=0, atol=1e-3)


def test_a_client_has_so_many_texts_at_the_most(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    lines = [line | {"who": "ann" if place % 4 else "bob"} for place, line in enumerate(LINES)]
    path.write_text("\n".join(map(json.dumps, lines)))
    config, run = run_on("json-lines", path, length=16, most=4)
    assert run.train_examples + run.test_examples == 4
    _, each = run_on("json-lines", path, length=16, most=4, client="who")
    assert each.train_examples + each.test_examples == 7  # of ann's nine, and bob's three
    assert own(config, run, path, tmp_path / "cache").train_examples == 4


def test_a_task_of_ones_own_reads_its_examples_itself(tmp_path: Path) -> None:
    config = config_from({"task": "own_task:ranges"})
    with pytest.raises(ConfigError, match="reads its examples itself"):
        own_examples(config, tmp_path, tmp_path, {}, ())
