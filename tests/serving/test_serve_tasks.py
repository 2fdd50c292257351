"""`nefl serve` for texts, tables and series: JSON for programs, a text box for people."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, ConsoleMessage, expect

import nefl
from nefl.export.source import open_run
from nefl.serving.predictor import Predictor
from nefl.serving.server import make_server

MAX_BODY = 50_000


@contextmanager
def serving(run: Path, folder: Path) -> Iterator[int]:
    file = nefl.export_family(run, folder / "e.safetensors", examples=10).path
    server = make_server(Predictor(file), port=0, max_body=MAX_BODY)
    threading.Thread(target=server.run, daemon=True).start()
    try:
        yield int(server.effective_port)
    finally:
        server.close()


def ask(port: int, body: bytes, query: str = "", kind: str = "") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers = {"Content-Type": kind} if kind else {}
        connection.request("POST", f"/predict{query}", body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def described(port: int) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/model")
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def completing(
    task_runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    with serving(task_runs["next-token"], tmp_path_factory.mktemp("next")) as port:
        yield port


def test_a_text_is_completed_over_http(completing: int) -> None:
    about = described(completing)
    assert (about["kind"], about["about"]) == ("next-token", "text")
    assert about["metrics"][0]["name"] == "perplexity"
    assert about["submodels"][0]["values"]["perplexity"] > 1
    status, plain = ask(completing, b"the cat", "?length=12&submodel=1")
    assert status == 200
    assert (plain["tokens"], plain["ended_by"], plain["submodel"]) == (12, "length", 1)
    same = ask(completing, b'{"text": "the cat"}', "?length=12&submodel=1", "application/json")
    assert same[1]["text"] == plain["text"]
    drawn = [ask(completing, b"the", f"?temperature=9&seed={s}")[1]["text"] for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("body", "query", "kind", "status"),
    [
        (b"", "", "", 400),
        (b"a", "?length=100000", "", 400),
        (b"a", "?length=1e2", "", 400),
        (b"a", "?length=" + "9" * 3000, "", 400),
        (b"a", "?temperature=nan", "", 400),
        (b"a", "?temperature=-1", "", 400),
        (b"a", "?seed=-1", "", 400),
        (b"a", "?length=3&length=4", "", 400),
        (b"{", "", "application/json", 400),
        (b"[" * 10_000, "", "application/json; charset=utf-8", 400),
        (b'{"texts": ["a", "b"]}', "", "application/json", 400),
    ],
)
def test_wrong_requests_get_proper_answers(
    completing: int, body: bytes, query: str, kind: str, status: int
) -> None:
    found, answer = ask(completing, body, query, kind)
    assert found == status
    assert 0 < len(answer["error"]) < 300


def test_rows_and_series_over_http(task_runs: dict[str, Path], tmp_path: Path) -> None:
    with serving(task_runs["table-regression"], tmp_path) as port:
        row = json.loads(described(port)["example"])
        status, answer = ask(port, json.dumps(row).encode())
        assert status == 200
        assert 0 < answer["value"] < 400  # the target goes from 25 to 346
        csv = ",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n"
        status, several = ask(port, csv.encode(), kind="text/csv")
        assert several["answers"] == [{"value": pytest.approx(answer["value"])}]
        assert "no column 'age'" in ask(port, b'{"sex": 1}')[1]["error"]
    task = open_run(task_runs["series-classification"]).setting.task
    with serving(task_runs["series-classification"], tmp_path) as port:
        series = np.array(task.test["series"][:2]).tolist()
        status, answer = ask(port, json.dumps(series).encode())
        assert status == 200
        assert [each["class"] in "0123456789" for each in answer["answers"]] == [True, True]
        assert ask(port, b"[[1, 2], [3]]")[0] == 400


def note_problem(problems: list[str], message: ConsoleMessage) -> None:
    if message.type == "error":
        problems.append(message.text)


def test_a_person_lets_a_text_go_on(completing: int, browser: Browser) -> None:
    problems: list[str] = []
    page = browser.new_page()
    page.on("console", partial(note_problem, problems))
    page.goto(f"http://127.0.0.1:{completing}/")
    expect(page.get_by_role("heading", level=1)).to_have_text("How does the text go on?")
    expect(page.get_by_label("Picture")).to_be_hidden()
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("status")).to_have_text("Write a text first.")
    page.get_by_label("Text", exact=True).fill("the <b>cat")
    page.get_by_label("Tokens").fill("9")
    page.get_by_label("Who answers").select_option("1")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("status")).to_have_text("9 tokens")
    wanted = ask(completing, b"the <b>cat", "?length=9&submodel=1")[1]["text"]
    assert page.locator("#going-on").text_content() == "the <b>cat" + wanted
    assert problems == []
    page.close()


def test_a_person_asks_about_a_text_and_a_row(
    task_runs: dict[str, Path], browser: Browser, tmp_path: Path
) -> None:
    for kind, said in (("text-classification", "so"), ("table-classification", "malignant|benign")):
        with serving(task_runs[kind], tmp_path) as port:
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{port}/")
            expect(page.locator("#about")).to_contain_text("2 classes")
            if kind == "text-classification":
                page.locator("#text").fill("it is so")
            page.get_by_role("button", name="Ask").click()
            expect(page.locator("#rows tr")).to_have_count(2)
            name = (page.get_by_role("status").text_content() or "").removeprefix("It looks like: ")
            assert any(each in name for each in said.split("|"))
            page.close()
