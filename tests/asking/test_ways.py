"""Things of a user's become inputs as in training, by a card alone; rubbish is refused by name."""

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import nefl.asking.texts
from nefl.artifacts.card import Card, SubmodelCard
from nefl.asking.way import MAX_FILE, MAX_JSON, Answers, Way, Wish
from nefl.asking.ways import card_facts, way_of
from nefl.data.series import described
from nefl.data.tables import Column, TableOptions, read_table
from nefl.data.texts import padded
from nefl.data.tokens import Bytes
from nefl.errors import ConfigError, DataError, RunError
from nefl.measured import MeasuredBy
from nefl.nesting.signature import Signature
from nefl.nesting.spec import SubmodelSpec
from nefl.tasks.tables import Standardised


def card(
    kind: str, signature: Signature, facts: Mapping[str, Any], names: tuple[str, ...] = ()
) -> Card:
    submodel = SubmodelCard(1, SubmodelSpec(((1.0,),)), 1, 1, 1)
    metric = MeasuredBy("any", "up")
    return Card("mlp", "nefl-wd", "own", 1, kind, signature, (metric,), (submodel,), names, facts)


class Seen:
    """A network that notes its inputs and answers as it is told."""

    def __init__(self, answer: Callable[[Tensor], Tensor]) -> None:
        self.inputs: list[Tensor] = []
        self._answer = answer

    def __call__(self, inputs: Tensor) -> Tensor:
        self.inputs.append(inputs)
        return self._answer(inputs)


def ask(way: Way, data: bytes, run: Callable[[Tensor], Tensor], **wishes: Any) -> Answers:
    is_json = wishes.pop("is_json", False)
    return way.ask(data, "it", run, Wish(**wishes), is_json=is_json)


TABLE = """age,colour,member,income
30,red,true,1
,blue,false,2
50,,true,3
40,red,,5
"""


@pytest.fixture
def table(tmp_path: Path) -> tuple[Card, np.ndarray[Any, Any], Path]:
    path = tmp_path / "table.csv"
    path.write_text(TABLE + TABLE.split("\n", 1)[1] * 5)
    examples = read_table(path, TableOptions(learn="numbers"))
    facts = json.loads(json.dumps(examples.facts))  # as it comes from a file
    rows = examples.train["features"]
    signature = Signature(rows.shape[1:], 1)
    return card("table-regression", signature, facts), rows, path


def test_rows_are_encoded_as_in_training(
    table: tuple[Card, np.ndarray[Any, Any], Path],
) -> None:
    described, rows, path = table
    way, run = way_of(described), Seen(lambda x: x[:, :1])
    found = ask(way, path.read_bytes(), run)
    assert found.several
    facts = described.facts
    scale = (torch.tensor(facts[key], dtype=torch.float64) for key in ("mean", "std"))
    wanted = Standardised("features", *scale)({"features": torch.from_numpy(rows)})
    given = torch.cat(run.inputs)
    for row in wanted:
        assert (given == row).all(1).any()
    for row in given:
        assert (row == given[:4]).all(1).any()
    # Answers are in the target's own units.
    first = float(given[0, 0]) * facts["target_std"] + facts["target_mean"]
    assert found.each[0].values["value"] == pytest.approx(first)

    one = {"age": None, "colour": "blue", "member": False, "other": "not asked for"}
    again = ask(way, json.dumps(one).encode(), run)
    assert not again.several
    assert torch.equal(run.inputs[-1][0], given[1])
    several = ask(way, json.dumps([one, one]).encode(), run, is_json=True)
    assert (several.several, len(several.each)) == (True, 2)
    assert set(json.loads(way.example)) == {"age", "colour", "member"}


@pytest.mark.parametrize("spelled", [("True", "False"), ("true", "false", "unknown")])
def test_truth_is_asked_about_as_training_spelled_it(
    spelled: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "table.csv"
    rows = [f"{spelled[i % len(spelled)]},{i % 2}\n" for i in range(12)]
    path.write_text("smoker,y\n" + "".join(rows))
    facts = read_table(path, TableOptions(learn="numbers")).facts
    signature = Signature((len(spelled),), 1)
    way, run = way_of(card("table-regression", signature, facts)), Seen(lambda x: x[:, :1])
    ask(way, b'[{"smoker": true}, {"smoker": "%s"}]' % spelled[0].encode(), run)
    assert torch.equal(*run.inputs[0])


def test_a_table_of_arrays_has_columns_by_number() -> None:
    columns = {"features": np.eye(4, 3, dtype=np.float32), "target": np.arange(4.0)}
    facts = described(columns, columns, [], "features").facts
    way, run = way_of(card("table-regression", Signature((3,), 1), facts)), Seen(lambda x: x[:, :1])
    assert way.noun == "row"
    ask(way, b'{"x0": 1, "x1": null, "x2": 0}', run)
    mean, std = (np.asarray(facts[key]) for key in ("mean", "std"))
    wanted = (np.array([1, mean[1], 0]) - mean) / std
    assert run.inputs[0][0].tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"{", "JSON"),
        (b"[]", "0 rows"),
        (b"[3]", "is no row"),
        (b'{"age": 3}', "row 1 has no column 'colour'"),
        (
            b'{"age": "old", "colour": "red", "member": "true"}',
            "'age': is 'old'; expected a number",
        ),
        (b'{"age": true, "colour": "red", "member": "true"}', "'age': is 'True'"),
        (b'{"age": [1], "colour": "red", "member": "true"}', "expected a number"),
        (b'{"age": 1e300, "colour": "red", "member": "true"}', "too large"),
        (b'{"age": 1%s, "colour": "red", "member": "true"}' % (b"0" * 400), "expected a number"),
        (b'{"age": 3, "colour": "pink", "member": "true"}', "nothing was learned; there are ''"),
        (b'{"age": 3, "colour": ["red"], "member": "true"}', "expected a word"),
        (b"age,colour,member\n", "0 rows"),
        (b"age,colour,member\n1,red\n", "row 1 has 2 cells"),
        (b"\xff\xfe\x00", "CSV"),
        (b"age,colour,member\n" + b"1,red,true\n" * 10_001, "at most 10000|10001 rows"),
        (b"[" * 100_000, "JSON"),
        (b" " * MAX_JSON + b"{}", "MiB of JSON"),
    ],
)
def test_rows_that_are_none_are_refused_by_name(
    table: tuple[Card, np.ndarray[Any, Any], Path], data: bytes, named: str
) -> None:
    with pytest.raises(DataError, match=f"it: .*({named})"):
        ask(way_of(table[0]), data, lambda x: x[:, :1])


TEXT = card(
    "text-classification", Signature((8,), 2, tokens=257, padding=256), {"tokenizer": "bytes"},
    ("no", "yes"),
)  # fmt: skip
NEXT = card("next-token", Signature((4,), 256, tokens=256, each_token=True), {"tokenizer": "bytes"})


def test_texts_are_cut_off_and_filled_up_as_in_training() -> None:
    run = Seen(lambda x: torch.stack((x[:, 0] * 0.0, x[:, 0] * 1.0), 1))
    for data, is_json in (("hé".encode(), False), (b'{"text": "h\\u00e9"}', True)):
        found = ask(way_of(TEXT), data, run, is_json=is_json)
        assert found.each[0].values["class"] == "yes"
        assert run.inputs[-1].dtype == torch.int64
        assert run.inputs[-1][0].tolist() == padded("hé".encode(), 8, Bytes()).tolist()
    many = ask(way_of(TEXT), b'{"texts": ["a", "longer than eight"]}', run, is_json=True)
    assert (many.several, len(many.each)) == (True, 2)
    assert bytes(run.inputs[-1][1].tolist()) == b"longer t"


@pytest.mark.parametrize(
    ("data", "is_json"),
    [
        (b"", False), (b"{}", True), (b"[]", True), (b'{"text": 3}', True), (b"plain", True),
        (b'{"texts": ["a", 3]}', True), (b'{"text": ""}', True), (b"\xff", True),
        (b'{"texts": []}', True), (b'{"text": "a", "texts": ["b"]}', True),
        (json.dumps({"texts": ["a"] * 1001}).encode(), True),
    ],
)  # fmt: skip
def test_texts_that_are_none_are_refused(data: bytes, is_json: bool) -> None:
    with pytest.raises(DataError, match="it: "):
        ask(way_of(TEXT), data, lambda x: x, is_json=is_json)


def counting(inputs: Tensor) -> Tensor:
    """Answer every token with the next letter."""
    return torch.nn.functional.one_hot((inputs + 1) % 256, 256).float() * 9


def test_a_text_is_completed_token_by_token() -> None:
    way, run = way_of(NEXT), Seen(counting)
    (found,) = ask(way, b"ab", run, length=6).each
    assert found.values == {"text": "cdefgh", "tokens": 6, "ended_by": "length"}
    assert [each.tolist() for each in run.inputs[:4]] == [
        [[97, 98, 0, 0]], [[97, 98, 99, 0]], [[97, 98, 99, 100]], [[98, 99, 100, 101]],
    ]  # fmt: skip
    drawn = [
        ask(way, b"ab", counting, length=20, temperature=5, seed=seed).each[0].values["text"]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert ask(way, b"ab", counting, temperature=1e-9, length=3).each[0].values["text"] == "cde"
    assert ask(way, b"\xff\xfe", counting, length=1).each[0].values["text"] == "\ufffd"


def test_completing_a_text_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nefl.asking.texts, "MAX_SECONDS", -1)
    assert ask(way_of(NEXT), b"a", counting).each[0].values["ended_by"] == "time"
    for wrong in ({"length": 0}, {"length": 1001}, {"temperature": float("nan")}, {"seed": -1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Wish(**wrong)
    with pytest.raises(DataError, match="one is completed at a time"):
        ask(way_of(NEXT), b'{"texts": ["a", "b"]}', counting, is_json=True)


SERIES = card(
    "series-classification", Signature((2, 3), 2), {"mean": [1.0, 2.0], "std": [1.0, 4.0]},
    ("a", "b"),
)  # fmt: skip
ARRAYS = card("own", Signature((2, 3), 6), {})


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def test_arrays_come_as_json_npy_and_npz() -> None:
    array = np.arange(6).reshape(2, 3)
    run = Seen(lambda x: x.flatten(1))
    forms = (
        json.dumps(array.tolist()).encode(), npy(array), npy(np.asfortranarray(array, "<f2")),
        npz(any=array), npz(x=array, y=np.zeros(3)),
    )  # fmt: skip
    for data in forms:
        found = ask(way_of(ARRAYS), data, run)
        assert not found.several
        assert found.each[0].values["outputs"] == list(range(6))
        assert run.inputs[-1].dtype == torch.float32
    assert ask(way_of(ARRAYS), npy(np.stack([array] * 40)), run).several
    ask(way_of(SERIES), forms[0], Seen(lambda x: x[:, :, 0]))
    seen = Seen(lambda x: x[:, :, 0])
    ask(way_of(SERIES), forms[0], seen)
    assert seen.inputs[0][0].tolist() == [[-1, 0, 1], [0.25, 0.5, 0.75]]


def _bomb() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\0" * (MAX_FILE + 1))
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[[1, 2], [3]]", b'[["a"]]', b"[[1, 2, 3]]", b"null", b"[" * 99 + b"]" * 99,
        b"[[1e999, 0, 0], [0, 0, 0]]", b"[[NaN, 0, 0], [0, 0, 0]]", npy(np.zeros((2, 4))),
        npy(np.zeros((2, 3)))[:-1], npy(np.zeros((2, 3))).replace(b"(2, 3)", b"(2, 9)"),
        npy(np.array([["a"]])), npz(a=np.zeros(3), b=np.zeros(3)), npz(x=np.zeros((2, 3)))[:60],
        npy(np.zeros((0, 2, 3))), b"\x93NUMPY\x03\x00",
    ],
)  # fmt: skip
def test_arrays_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="it"):
        ask(way_of(ARRAYS), data, lambda x: x)


def test_a_bomb_is_not_unpacked_to_its_end() -> None:
    with pytest.raises(DataError, match="it, unpacked,: has more than 64 MiB"):
        ask(way_of(ARRAYS), _bomb(), lambda x: x)


def test_nothing_is_unpickled() -> None:
    out = io.BytesIO()
    np.save(out, np.array([{"a": 1}]), allow_pickle=True)
    with pytest.raises(DataError, match=r"no \.npy file of plain numbers"):
        ask(way_of(ARRAYS), out.getvalue(), lambda x: x)


def test_tokens_are_whole_and_known() -> None:
    own = card("own", Signature((3,), 2, tokens=5), {})
    run = Seen(lambda x: x[:, :2].float())
    assert ask(way_of(own), b"[4, 0, 1]", run).each[0].values["outputs"] == [4, 0]
    assert run.inputs[0].dtype == torch.int64
    for wrong in (b"[5, 0, 1]", b"[-1, 0, 1]", b"[0.5, 0, 1]", b"[NaN, 0, 0]"):
        with pytest.raises(DataError, match="no tokens"):
            ask(way_of(own), wrong, run)


def test_a_card_without_facts_takes_arrays_and_one_that_lies_is_refused() -> None:
    assert way_of(card("text-classification", TEXT.signature, {}, ("no", "yes"))).noun == "array"
    assert way_of(card("table-regression", Signature((3,), 1), {})).noun == "array"
    numbers = {"columns": [asdict(Column("a", ("x", "y")))], "mean": [0, 0], "std": [1, 1]}
    series = {"mean": [0.0], "std": [1.0]}
    names, words = ("no", "yes"), {"tokenizer": "bytes"}
    lies: list[Card] = [
        card("text-classification", TEXT.signature, {"tokenizer": "words"}, names),
        card("text-classification", Signature((8,), 2, tokens=9), words, names),
        card("next-token", TEXT.signature, words),
        card("table-regression", Signature((3,), 1), numbers),
        card("table-regression", Signature((2,), 1), {**numbers, "std": [1, 0]}),
        card("table-regression", Signature((2,), 2), numbers),
        card("table-regression", Signature((2,), 1), {**numbers, "columns": "a"}),
        card("series-regression", Signature((3, 4), 1), series),
        card("series-regression", Signature((1, 4), 1), {**series, "target_std": 0}),
    ]
    for lie in lies:
        with pytest.raises(RunError, match="is wrong"):
            way_of(lie)


def test_whose_examples_were_is_not_on_a_card() -> None:
    facts = {"tokenizer": "bytes", "owners": ["anna", "bert"], "length": 8}
    assert card_facts("next-token", facts) == {"tokenizer": "bytes"}
    assert card_facts("own", {"a": 1}) == {"a": 1}
