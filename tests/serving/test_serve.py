"""`nefl serve`: a page for people in a real browser, JSON for programs, limits for everyone."""

import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, ConsoleMessage, expect

from nefl.errors import ConfigError, RunError
from nefl.export.source import open_run
from nefl.serving.app import LARGE_PLACES, ServeApp
from nefl.serving.predictor import Prediction, Predictor
from nefl.serving.server import make_server
from nefl.web.callers import Refusal

MAX_BODY = 100_000


@pytest.fixture(scope="module")
def port(elastic_file: Path) -> Iterator[int]:
    server = make_server(Predictor(elastic_file), port=0, max_body=MAX_BODY, concurrency=4)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield int(server.effective_port)
    server.close()


@pytest.fixture(scope="module")
def picture(digits_run: Path) -> bytes:
    image = np.array(open_run(digits_run).setting.task.test["image"][0, 0])
    out = io.BytesIO()
    Image.fromarray(image).resize((64, 64)).save(out, "PNG")
    return out.getvalue()


def ask(
    port: int,
    path: str = "/predict",
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    method: str = "POST",
) -> tuple[int, Any, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        text = response.read()
        kind = response.headers.get("Content-Type", "")
        return response.status, json.loads(text) if "json" in kind else text, dict(response.headers)
    finally:
        connection.close()


def test_programs_get_json(port: int, picture: bytes) -> None:
    status, answer, headers = ask(port, body=picture)
    assert status == 200
    assert answer["class"] in "0123456789"
    assert answer["submodel"] == 5
    assert answer["latency_ms"] > 0
    assert sum(c["probability"] for c in answer["classes"]) <= 1.000001
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "Server" not in headers
    assert ask(port, "/predict?submodel=2", picture)[1]["submodel"] == 2
    macs = ask(port, "/model", method="GET")[1]["submodels"][2]["macs"]
    assert ask(port, f"/predict?fits=macs%3C{macs + 1}", picture)[1]["submodel"] == 3
    slow = ask(port, "/predict?fits=latency%3C1us", picture)[1]
    assert (slow["submodel"], slow["fits"]) == (1, False)


@pytest.mark.parametrize(
    ("path", "body", "method", "status"),
    [
        ("/predict", b"rubbish", "POST", 400),
        ("/predict", b"", "POST", 400),
        ("/predict?submodel=9", b"x", "POST", 400),
        ("/predict?submodel=two", b"x", "POST", 400),
        ("/predict?fits=size", b"x", "POST", 400),
        ("/predict?other=1", b"x", "POST", 400),
        ("/predict?submodel", b"x", "POST", 400),
        ("/predict?submodel=9&submodel=1", b"x", "POST", 400),
        ("/predict?submodel=%D9%A1", b"x", "POST", 400),
        ("/predict?submodel=1&fits=macs%3C1M", b"x", "POST", 400),
        ("/predict", None, "GET", 405),
        ("/", b"x", "POST", 405),
        ("/../secret", None, "GET", 404),
        ("/predict", b"x" * (MAX_BODY + 1), "POST", 413),
    ],
)
def test_wrong_requests_get_proper_answers(
    port: int, path: str, body: bytes | None, method: str, status: int
) -> None:
    found, answer, _ = ask(port, path, body, method=method)
    assert found == status
    assert answer


def test_pages_of_elsewhere_cannot_ask(port: int, picture: bytes) -> None:
    assert ask(port, body=picture, headers={"Host": "evil.example"})[0] == 403
    assert ask(port, body=picture, headers={"Origin": "http://evil.example"})[0] == 403
    same = {"Origin": f"http://127.0.0.1:{port}", "Host": f"127.0.0.1:{port}"}
    assert ask(port, body=picture, headers=same)[0] == 200


def test_a_server_on_another_loopback_address_checks_names_too(
    elastic_file: Path, picture: bytes
) -> None:
    server = make_server(Predictor(elastic_file), host="127.0.0.2", port=0)
    threading.Thread(target=server.run, daemon=True).start()
    try:
        for host, status in ((f"127.0.0.2:{server.effective_port}", 200), ("evil.example", 403)):
            connection = http.client.HTTPConnection("127.0.0.2", int(server.effective_port))
            connection.request("POST", "/predict", picture, {"Host": host})
            assert connection.getresponse().status == status
            connection.close()
    finally:
        server.close()


def test_large_pictures_wait_in_a_lane_of_their_own(elastic_file: Path, picture: bytes) -> None:
    predictor = Predictor(elastic_file)
    out = io.BytesIO()
    Image.new("L", (4000, 3000)).save(out, "PNG")
    large, go_on = out.getvalue(), threading.Event()

    class Slow:
        card, latencies, is_large = predictor.card, predictor.latencies, predictor.is_large
        way = predictor.way

        def __call__(self, picture: bytes, **asked: Any) -> Prediction:
            if picture == large:
                go_on.wait()
            return predictor(picture, **asked)

    app = ServeApp(cast("Predictor", Slow()))

    def post(picture: bytes) -> int:
        body = {"CONTENT_LENGTH": str(len(picture)), "wsgi.input": io.BytesIO(picture)}
        try:
            app.answer({"REQUEST_METHOD": "POST", "PATH_INFO": "/predict", **body})
        except Refusal as refusal:
            return refusal.status
        return 200

    with ThreadPoolExecutor(20) as pool:
        floods = [pool.submit(post, large) for _ in range(10)]
        while sum(flood.done() for flood in floods) < len(floods) - LARGE_PLACES:
            time.sleep(0.01)  # the others are at work, or behind the one that is
        assert post(picture) == 200
        assert post(large) == 503
        go_on.set()
    assert sorted(f.result() for f in floods) == [200] * LARGE_PLACES + [503] * 6


def test_answers_that_are_not_finite_are_none(
    elastic_file: Path, picture: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = Predictor(elastic_file)
    monkeypatch.setattr(predictor, "_outputs", lambda *_: torch.full((1, 10), float("nan")))
    with pytest.raises(RunError, match="not finite"):
        predictor(picture)
    body = {"CONTENT_LENGTH": str(len(picture)), "wsgi.input": io.BytesIO(picture)}
    with pytest.raises(Refusal) as refused:
        ServeApp(predictor).answer({"REQUEST_METHOD": "POST", "PATH_INFO": "/predict", **body})
    assert refused.value.status == 500


def test_json_has_no_numbers_that_parsers_refuse(elastic_file: Path) -> None:
    predictor = Predictor(elastic_file)

    class Odd:
        card, latencies = predictor.card, [float("nan")] * len(predictor.latencies)
        way = predictor.way

    answer = ServeApp(cast("Predictor", Odd())).answer(
        {"REQUEST_METHOD": "GET", "PATH_INFO": "/model"}
    )
    assert b"NaN" not in answer.body


def test_many_at_once_are_answered_or_told_to_come_again(port: int, picture: bytes) -> None:
    with ThreadPoolExecutor(40) as pool:
        found = list(pool.map(lambda _: ask(port, body=picture), range(80)))
    statuses = {status for status, _, _ in found}
    assert statuses <= {200, 503}
    assert 200 in statuses
    assert all("Retry-After" in h for s, _, h in found if s == 503)
    assert ask(port, body=picture)[0] == 200


def test_slow_clients_keep_nobody_waiting(port: int, picture: bytes) -> None:
    slow = []
    for _ in range(30):
        connection = socket.create_connection(("127.0.0.1", port), timeout=10)
        connection.sendall(
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\nab"
        )
        slow.append(connection)
    assert ask(port, body=picture)[0] == 200
    for connection in slow:
        connection.close()
    broken = socket.create_connection(("127.0.0.1", port), timeout=10)
    broken.sendall(b"\x00\xff nonsense\r\n\r\n")
    assert b"400" in broken.recv(200)
    broken.close()


def note_problem(problems: list[str], message: ConsoleMessage) -> None:
    if message.type == "error":
        problems.append(message.text)


def test_a_person_uploads_a_picture(
    port: int, picture: bytes, browser: Browser, tmp_path: Path
) -> None:
    (tmp_path / "three.png").write_bytes(picture)
    (tmp_path / "text.png").write_bytes(b"this is no picture")
    (tmp_path / "large.png").write_bytes(b"x" * (MAX_BODY + 1))
    wanted = ask(port, "/predict?submodel=2", picture)[1]
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        page = browser.new_page(color_scheme=scheme)
        problems: list[str] = []
        page.on("console", partial(note_problem, problems))
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator("#about")).to_contain_text("10 classes")
        page.get_by_label("Picture").set_input_files(tmp_path / "three.png")
        page.get_by_label("Who answers").select_option("2")
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_role("status")).to_have_text(f"It looks like: {wanted['class']}")
        expect(page.locator("#caption")).to_contain_text("Submodel 2 answered in")
        expect(page.locator("#rows tr")).to_have_count(5)
        assert page.locator("#preview").evaluate("e => e.naturalWidth") == 64
        assert problems == []
        page.get_by_label("Who answers").select_option("limit")
        page.get_by_label("milliseconds").fill("0.001")
        page.get_by_role("button", name="Ask").click()
        expect(page.locator("#caption")).to_contain_text("even the smallest is slower")
        page.get_by_label("Picture").set_input_files(tmp_path / "text.png")
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_role("status")).to_contain_text("no picture that can be read")
        page.get_by_label("Picture").set_input_files(tmp_path / "large.png")
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_role("status")).to_contain_text("too large")
        page.close()


def test_limits_that_make_no_sense_are_refused(elastic_file: Path) -> None:
    predictor = Predictor(elastic_file)
    with pytest.raises(ConfigError, match="port 70000"):
        make_server(predictor, port=70_000)
    with pytest.raises(ConfigError, match="give 1 or more"):
        make_server(predictor, port=0, concurrency=0)


def test_an_answer_repeats_little_of_the_query(port: int, picture: bytes) -> None:
    long = "y" * 3000
    for query in (f"submodel={long}", f"fits={long}", f"{long}=1"):
        status, answer, _ = ask(port, f"/predict?{query}", picture)
        assert (status, answer["error"].count("y") < 110) == (400, True)
    assert "once" in ask(port, "/predict?submodel=1&submodel=1", picture)[1]["error"]
    assert "no number" in ask(port, "/predict?submodel=%D9%A1", picture)[1]["error"]
