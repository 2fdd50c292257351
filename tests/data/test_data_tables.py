"""Tables: what becomes of numbers, words, gaps and owners."""

import json
from pathlib import Path

import numpy as np
import pytest

from nefl.data.tables import CLIENT, FEATURES, TARGET, TableOptions, read_sklearn, read_table
from nefl.errors import ConfigError, DataError

CSV = """age,colour,who,income
30,red,ann,low
40,green,bob,high
,red,ann,low
50,blue,cid,high
20,red,bob,low
60,green,cid,high
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_text(CSV, encoding="utf-8")
    return path


def test_words_become_columns_and_gaps_the_mean(table: Path) -> None:
    found = read_table(table, TableOptions(client="who", test=0.34))
    columns = [(column["name"], column["words"]) for column in found.facts["columns"]]
    assert columns == [("age", ()), ("colour", ("blue", "green", "red"))]
    assert found.facts["class_names"] == ["high", "low"]
    assert found.facts["owners"] == ["ann", "bob", "cid"]
    features = np.concatenate([found.train[FEATURES], found.test[FEATURES]])
    assert len(found.test[TARGET]) == 2
    assert set(found.test[TARGET]) == {0, 1}  # each class has its share
    known = found.train[FEATURES][:, 0]
    assert np.isfinite(features).all()
    gap = features[~np.isin(features[:, 0], [20, 30, 40, 50, 60])][:, 0]
    given = known[np.isin(known, [20, 30, 40, 50, 60])]
    assert gap == pytest.approx(given.mean())
    assert set(found.train[CLIENT]) <= {0, 1, 2}


def test_a_number_is_foretold_where_the_target_has_fractions(table: Path) -> None:
    table.write_text("a,b\n" + "\n".join(f"{i},{i / 7}" for i in range(20)), encoding="utf-8")
    found = read_table(table, TableOptions())
    assert found.facts["class_names"] == []
    assert found.train[TARGET].dtype == np.float32
    assert found.facts["target_mean"] == pytest.approx(found.train[TARGET].mean())


def test_json_lines_and_a_file_of_test_rows(tmp_path: Path) -> None:
    for name, rows in (("train", 8), ("test", 3)):
        lines = [json.dumps({"x": i, "y": "ab"[i % 2]}) for i in range(rows)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    options = TableOptions(test_root=str(tmp_path / "test.jsonl"))
    found = read_table(tmp_path / "train.jsonl", options)
    assert found.train[FEATURES][:, 0].tolist() == list(range(8))
    assert found.test[TARGET].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (TableOptions(target="wage"), "no column 'wage'; there are age, colour, who, income"),
        (TableOptions(features=("age", "shoe")), "no column 'shoe'"),
        (TableOptions(learn="numbers"), "holds words"),
    ],
)
def test_what_is_not_there_is_named(table: Path, options: TableOptions, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_table(table, options)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b'a,b\n1,2\n3,4,5\n"')
    with pytest.raises(DataError, match="cannot be read as a table"):
        read_table(path, TableOptions())
    path.write_text("a,b\n", encoding="utf-8")
    with pytest.raises(DataError, match="no rows"):
        read_table(path, TableOptions())
    with pytest.raises(ConfigError, match="between 0 and 1"):
        TableOptions(test=1.0)


def test_sklearns_tables_are_whole() -> None:
    wine = read_sklearn("wine", TableOptions())
    assert len(wine.train[TARGET]) + len(wine.test[TARGET]) == 178
    assert wine.facts["class_names"] == ["class_0", "class_1", "class_2"]
    assert read_sklearn("diabetes", TableOptions()).facts["class_names"] == []
