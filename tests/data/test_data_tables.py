"""Tables: what becomes of numbers, words, gaps and owners."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nefl.data.class_names import labels_by_name
from nefl.data.series import number_examples
from nefl.data.tables import (
    CLIENT,
    FEATURES,
    TARGET,
    TableOptions,
    own_table,
    read_sklearn,
    read_table,
)
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
    assert found.train[TARGET].dtype == np.float64
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
        (TableOptions(client="income", target="income"), "client is 'income', the column to learn"),
        (TableOptions(features=("age", "income")), "features has 'income', the column to learn"),
        (TableOptions(features=("age", "who"), client="who"), "features has 'who', whose a row is"),
    ],
)
def test_what_is_not_there_is_named(table: Path, options: TableOptions, said: str) -> None:
    with pytest.raises((DataError, ConfigError), match=said):
        read_table(table, options)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b'a,b\n1,2\n3,4,5\n"')
    with pytest.raises(DataError, match="cannot be read as a table"):
        read_table(path, TableOptions())
    path.write_text("a,b\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"x\.csv: has no rows"):
        read_table(path, TableOptions())
    with pytest.raises(ConfigError, match="between 0 and 1"):
        TableOptions(test=1.0)


def test_sklearns_tables_are_whole() -> None:
    wine = read_sklearn("wine", TableOptions())
    assert len(wine.train[TARGET]) + len(wine.test[TARGET]) == 178
    assert wine.facts["class_names"] == ["class_0", "class_1", "class_2"]
    assert read_sklearn("diabetes", TableOptions()).facts["class_names"] == []


@pytest.mark.parametrize(
    ("everywhere", "here"),
    [
        (("true", "false", "unknown"), ("true", "false")),
        (("True", "False"), ("True", "True")),
        (("10:30", "11:30", "late"), ("10:30", "11:30")),
        (("2020-01-01", "2020-01-02", ""), ("2020-01-01", "")),
        (("a", "b", "NA"), ("NA", "NA")),
        (("10", "20", "XL"), ("10", "20")),
        (("a", "b", ""), ("", "")),
    ],
)
def test_a_word_is_what_stands_in_the_file_whatever_stands_beside_it(
    everywhere: tuple[str, ...], here: tuple[str, ...], tmp_path: Path
) -> None:
    many, few = tmp_path / "many.csv", tmp_path / "few.csv"
    rows = [f"{everywhere[i % len(everywhere)]},{i % 2}" for i in range(30)]
    many.write_text("\n".join(["word,y", *rows]))
    few.write_text("\n".join(["word,y", *(f"{word},{i % 2}" for i, word in enumerate(here))]))
    run = read_table(many, TableOptions(test_root=str(few)))
    words = run.facts["columns"][0]["words"]
    assert words == tuple(sorted(set(everywhere)))
    wanted = [[float(word == each) for each in words] for word in here]
    assert run.test[FEATURES].tolist() == wanted
    assert own_table(few, run.facts)[FEATURES].tolist() == wanted


def test_truth_and_dates_of_json_are_spelled_as_there(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    kinds = [(True, "2020-01-01"), (False, "2020-01-02"), (None, None)]
    rows = [{"smoker": kinds[i % 3][0], "day": kinds[i % 3][1], "y": i % 2} for i in range(12)]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = read_table(path, TableOptions())
    words = [column["words"] for column in found.facts["columns"]]
    assert words == [("", "false", "true"), ("", "2020-01-01", "2020-01-02")]
    path.write_text(json.dumps({"smoker": None, "day": None, "y": 1}))
    assert own_table(path, found.facts)[FEATURES].tolist() == [[1, 0, 0, 1, 0, 0]]


def test_test_rows_of_another_sort_are_refused(tmp_path: Path) -> None:
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("x,y\n1,0\n2,1\n3,0\n")
    test.write_text("x,y\nmany,0\n2,1\n")
    with pytest.raises(DataError, match=r"test.csv: column 'x' holds words, .*numbers"):
        read_table(train, TableOptions(test_root=str(test)))


def test_the_last_column_is_learned_unless_it_says_whose_a_row_is(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("x,y,hospital\n" + "".join(f"{i},{i % 2},h{i % 3}\n" for i in range(12)))
    found = read_table(path, TableOptions(client="hospital"))
    assert (found.facts["target"], [c["name"] for c in found.facts["columns"]]) == ("y", ["x"])


def test_large_numbers_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    days = range(20240101, 20240131)
    path.write_text("day,code\n" + "".join(f"{day},{1234567 + day % 2}\n" for day in days))
    found = read_table(path, TableOptions())
    assert found.facts["class_names"] == ["1234567", "1234568"]
    own = own_table(path, found.facts)
    assert own[FEATURES][:, 0].tolist() == list(days)
    assert own[TARGET].tolist() == [day % 2 for day in days]
    moments = read_table(path, TableOptions(target="day", learn="numbers"))
    assert len(set(moments.train[TARGET].tolist())) == len(moments.train[TARGET])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("1,ann,a\n2,bob,\n", "income: row 1 has nothing to learn"),
        ("1,,a\n2,bob,b\n", "row 0 does not say whose it is"),
    ],
)
def test_a_missing_class_or_owner_is_refused(tmp_path: Path, rows: str, said: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("age,who,income\n" + rows)
    with pytest.raises(DataError, match=said):
        read_table(path, TableOptions(client="who"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"y_test": np.array([0.0, 1.0])}, "y_train has whole numbers, y_test has fractions"),
        ({"y_train": np.array([0.0, 1.0])}, "y_train has fractions, y_test has whole"),
        (
            {"y_train": np.ones(2), "y_test": np.ones(2), "class_names": np.array(["a", "b"])},
            "2 classes are named",
        ),
        ({"y_train": np.array([0, 250_000])}, "has label 250000, expected less than 100000"),
    ],
)
def test_arrays_have_classes_or_numbers(changed: dict[str, Any], said: str) -> None:
    x, y = np.eye(2), np.array([0, 1])
    arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    with pytest.raises(DataError, match=said):
        number_examples(arrays | changed, "mine.npz", FEATURES)


def test_classes_of_one_name_are_refused() -> None:
    with pytest.raises(DataError, match="it: several classes are called 'a'; name them apart"):
        labels_by_name(["a"], ["a", "b", "a"], "it")


def test_whole_numbers_that_are_hardly_classes_are_asked_about(tmp_path: Path) -> None:
    """A price is a number to foretell, though it has no fraction."""
    path = tmp_path / "prices.csv"
    path.write_text("area,price\n" + "\n".join(f"{n},{1000 + 7 * n}" for n in range(40)))
    with pytest.raises(DataError, match=r"price: 40 different whole numbers in 40 rows"):
        read_table(path, TableOptions())
    assert not read_table(path, TableOptions(learn="numbers")).facts["class_names"]
    assert len(read_table(path, TableOptions(learn="classes")).facts["class_names"]) == 40
