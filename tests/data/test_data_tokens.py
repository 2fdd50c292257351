"""Tokenizers: bytes, trained on the data, or from a file; in data, in files and in messages."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

import nefl
from nefl.data.readers import NEXT, read_options
from nefl.data.texts import TextOptions, next_token_examples, own_texts, read_json_lines
from nefl.data.tokens import (
    Bytes,
    Pieces,
    Tokens,
    facts_to_send,
    find_tokens,
    tokens_of,
    train_pieces,
)
from nefl.errors import ConfigError, DataError
from nefl.serving.predictor import Predictor

TEXT = "\n".join(f"def other_{n}(self, value): return self.other + value" for n in range(60))


@pytest.fixture(scope="module")
def pieces() -> str:
    return train_pieces([TEXT.encode()], 300)


def test_a_trained_tokenizer_tells_every_text(pieces: str) -> None:
    found = Pieces(pieces, "here")
    tokens = found.encode(TEXT.encode()).tolist()
    assert found.size == 300
    assert len(tokens) < len(TEXT) / 2
    assert found.decode(tokens) == TEXT
    odd = "Ωμέγα \x00 …"
    assert found.decode(found.encode(odd.encode()).tolist()) == odd
    assert found.decode(tokens[3:], tokens[:3]) == TEXT[len(found.decode(tokens[:3])) :]
    assert train_pieces([TEXT.encode()], 300) == pieces


def test_rows_of_pieces_and_what_facts_say(pieces: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(pieces)
    options = TextOptions(length=8, tokenizer=str(tmp_path))
    data = next_token_examples({"a": [TEXT.encode()], "b": [TEXT.encode()]}, options, "here")
    assert data.facts["vocabulary"] == 300
    assert data.facts["tokenizer"] == pieces
    assert data.train["tokens"].shape[1] == 9
    assert data.train["tokens"].max() < 300
    first = tokens_of(data.facts["tokenizer"], "facts").decode(data.train["tokens"][0].tolist())
    assert TEXT.startswith(first)
    sent = facts_to_send(data.facts)
    assert len(sent["tokenizer"]) < 100
    (tmp_path / "mine.txt").write_text(TEXT)
    mine = own_texts(tmp_path / "mine.txt", options, sent)
    assert (mine["tokens"][0] == data.train["tokens"][0]).all()
    (tmp_path / "tokenizer.json").write_text(train_pieces([TEXT.encode()], 290))
    with pytest.raises(DataError, match="is another tokenizer than the server's"):
        own_texts(tmp_path / "mine.txt", options, sent)
    trained = TextOptions(length=8, tokenizer="bpe")
    with pytest.raises(DataError, match="trained on the run's data"):
        own_texts(tmp_path / "mine.txt", trained, sent)


def test_what_is_trained_sees_nothing_that_is_for_testing() -> None:
    texts = {"a": [b"abcabcabc " * 50, b"xyzxyzxyz " * 50]}
    options = TextOptions(length=4, tokenizer="bpe", vocabulary=270, test=0.5)
    found = tokens_of(next_token_examples(texts, options, "x").facts["tokenizer"], "x")
    assert len(found.encode(b"abcabcabc")) < len(found.encode(b"xyzxyzxyz"))


def test_bytes_need_nothing_and_stay_what_they_are() -> None:
    data = next_token_examples({"a": [TEXT.encode()]}, TextOptions(length=8), "here")
    assert data.facts["tokenizer"] == "bytes"
    assert bytes(data.train["tokens"][0]) == TEXT.encode()[:9]
    assert isinstance(find_tokens("bytes", (), 0), Bytes)


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ConfigError, match="is neither bytes nor bpe, nor a folder with tokenizer"):
        find_tokens(str(tmp_path), (), 0)
    with pytest.raises(DataError, match=r"bad.json: is no tokenizer"):
        find_tokens(str(tmp_path / "bad.json"), (), 0)
    with pytest.raises(DataError, match="there is bytes, or one as JSON"):
        tokens_of("words", "the file")
    with pytest.raises(ConfigError, match="vocabulary is 3: give more than 256"):
        read_options("text", {"vocabulary": 3})


def test_clients_by_name() -> None:
    texts = {name: [TEXT.encode()] for name in "abc"}
    few = next_token_examples(texts, TextOptions(length=8, only=("a", "c")), "here")
    assert few.facts["owners"] == ["a", "c"]
    others = next_token_examples(texts, TextOptions(length=8, without=("a",)), "here")
    assert others.facts["owners"] == ["b", "c"]
    with pytest.raises(ConfigError, match="data.options.without of here"):
        next_token_examples(texts, TextOptions(length=8, without=("d",)), "here")


@pytest.mark.long
def test_a_run_of_pieces_completes_texts(pieces: str, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text(TEXT)
    (tmp_path / "tokenizer.json").write_text(pieces)
    options = {"length": 8, "tokenizer": str(tmp_path / "tokenizer.json")}
    settings = {
        "rounds": 1,
        "task": NEXT,
        "model": {"name": "decoder_tiny", "method": "nefl-wd", "ratios": [0.3, 1.0]},
        "data": {"name": "text", "root": str(tmp_path / "words.txt"), "options": options},
        "clients": {"count": 2, "per_round": 2},
        "local": {"epochs": 1},
        "engine": {"name": "serial", "device": "cpu"},
    }
    run = nefl.train(settings, tmp_path / "run").path
    done = nefl.export_family(run, tmp_path / "all.safetensors", examples=8)
    answer = Predictor(done.path)(b"def other_1").answers[0]
    assert answer.values["tokens"] == 100
    folder = tmp_path / "folder"
    nefl.export_submodel(run, folder, submodel=2, format_name="huggingface", examples=8)
    assert (folder / "tokenizer.json").read_text() == pieces


def test_clients_are_chosen_where_texts_are_classified_too(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    lines = [
        {"text": f"{name} {n}", "label": "even" if n % 2 == 0 else "odd", "client": name}
        for name in ("a", "b", "c")
        for n in range(8)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    options = TextOptions(length=8, client="client", without=("b",))
    found = read_json_lines(path, options, classify=True)
    assert found.facts["owners"] == ["a", "c"]
    assert len(found.train["tokens"]) + len(found.test["tokens"]) == 16
    with pytest.raises(ConfigError, match="no column says whose a text is"):
        read_json_lines(path, TextOptions(length=8, only=("a",)), classify=True)
    with pytest.raises(ConfigError, match=r"data.options.only of .*'d'"):
        read_json_lines(path, TextOptions(length=8, client="client", only=("d",)), classify=True)


def test_a_tokenizer_of_classified_texts_sees_those_for_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines.jsonl"
    lines = [{"text": f"text {n:02}", "label": str(n % 2)} for n in range(20)]
    path.write_text("\n".join(map(json.dumps, lines)))
    seen: list[bytes] = []

    def watched(name: str, texts: Iterable[bytes], vocabulary: int) -> Tokens:
        seen.extend(texts)
        return find_tokens(name, seen, vocabulary)

    monkeypatch.setattr("nefl.data.texts.find_tokens", watched)
    found = read_json_lines(path, TextOptions(length=7), classify=True)
    rows = [bytes(row.astype(np.uint8)) for row in found.train["tokens"]]
    assert sorted(seen) == sorted(rows)
