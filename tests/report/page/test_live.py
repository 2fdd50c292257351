"""A watched page follows its run, for this machine alone."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from nefl.report.page.live import address_of, make_server
from nefl.web.connections import CONNECTIONS
from tests.report.conftest import MakeRun, round_line


@contextmanager
def watching(folder: Path) -> Iterator[str]:
    server = make_server([folder], 0)
    threading.Thread(target=server.run, daemon=True).start()
    yield address_of(server)
    server.close()


@pytest.fixture
def served(make_run: MakeRun) -> Iterator[tuple[Path, str]]:
    log = [round_line(1, [0.1, 0.2]), round_line(2, [0.2, 0.3])]
    folder = make_run("going", log=log, settings={"rounds": 9})
    with watching(folder) as address:
        yield folder, address


def get(address: str, path: str, **headers: str) -> tuple[int, str]:
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_only_news_is_sent_and_only_to_this_machine(served: tuple[Path, str]) -> None:
    folder, address = served
    status, text = get(address, "/content?seen=")
    version = json.loads(text)["content"]["version"]
    assert status == 200
    assert get(address, f"/content?seen={version.replace(' ', '%20')}")[0] == 204
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(round_line(3, [0.4, 0.5])) + "\n")
    assert get(address, f"/content?seen={version.replace(' ', '%20')}")[0] == 200
    assert get(address, "/", Host="evil.example")[0] == 403
    assert get(address, "/content?seen=", Origin="http://evil.example")[0] == 403
    own = address.rstrip("/")
    assert get(address, "/content?seen=", Origin=own, Host=own.partition("://")[2])[0] == 200
    assert get(address, "/etc/passwd")[0] == 404
    status, text = get(address, "/metrics")
    assert (status, 'nefl_rounds_total{run="going"} 3.0' in text) == (200, True)
    assert get(address, "/metrics", Host="evil.example")[0] == 403


def test_half_sent_requests_keep_nobody_waiting(served: tuple[Path, str]) -> None:
    _, address = served
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    half = []
    for _ in range(CONNECTIONS + 20):
        connection = socket.create_connection(("127.0.0.1", port), timeout=10)
        connection.sendall(b"GET / HTTP/1.1\r\nHost: local")
        half.append(connection)
    assert get(address, "/content?seen=")[0] == 200
    for connection in half:
        connection.close()


def test_the_page_updates_itself(served: tuple[Path, str], browser: Browser) -> None:
    folder, address = served
    page = browser.new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    page.wait_for_selector("body[data-drawn]", timeout=120_000, state="attached")
    assert "round 2 of 9" in page.inner_text("#part-runs")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(round_line(3, [0.4, 0.5])) + "\n")
    page.wait_for_function(
        "() => document.getElementById('part-runs').innerText.includes('round 3 of 9')",
        timeout=60_000,
    )
    assert not said
    page.close()


@pytest.mark.long
def test_a_second_seed_joins_while_the_page_is_watched(
    make_run: MakeRun, browser: Browser, tmp_path: Path
) -> None:
    log = [round_line(1, [0.1, 0.2]), round_line(2, [0.2, 0.3])]
    make_run("runs/first", log=log, settings={"rounds": 9})
    with watching(tmp_path / "runs") as address:
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector("body[data-drawn]", timeout=120_000, state="attached")
        make_run("runs/second", log=log, settings={"rounds": 9, "seed": 1})
        page.wait_for_selector("#seeds", timeout=60_000)
        assert page.input_value("#seeds") == "each"  # who watches wants to see each run go on
        page.wait_for_selector("body[data-drawn]", timeout=120_000, state="attached")
        lines = "() => document.querySelectorAll('[data-figure=curves] .mark-line path').length"
        page.wait_for_function(f"({lines})() === 4", timeout=60_000)  # two submodels of each
        page.close()
