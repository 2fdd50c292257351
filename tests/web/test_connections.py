"""No client holds a connection for as long as it likes."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nefl.errors import ConfigError, RunError
from nefl.web.answers import TEXT, Answer, Application
from nefl.web.callers import Callers
from nefl.web.connections import CONNECTIONS, IDLE_SECONDS, REQUEST_SECONDS
from nefl.web.server import listen

WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = 32 * 2**20  # more than a socket holds for a client that does not read


def say(reason: str) -> Answer:
    return Answer(reason.encode(), TEXT)


def open_server(port: int = 0) -> Any:
    app = Application(lambda _: say("x" * LARGE), say, Callers("127.0.0.1"))
    return listen(app, host="127.0.0.1", port=port, threads=2, max_body=100, extra="serve")


@pytest.fixture
def server() -> Iterator[Any]:
    found = open_server()
    threading.Thread(target=found.run, daemon=True).start()
    yield found
    found.close()


def connect(server: Any, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(server.effective_port)), timeout=30)
    connection.sendall(sent)
    return connection


def wait_until(done: Callable[[], bool]) -> None:
    while not done():
        time.sleep(0.01)


def read_all(connection: socket.socket) -> int:
    found = 0
    try:
        while part := connection.recv(2**20):
            found += len(part)
    except ConnectionResetError:
        pass
    return found


def halfway(server: Any) -> int:
    return sum(channel.is_halfway() for channel in list(server.active_channels.values()))


@pytest.mark.parametrize("sent", [WHOLE[:20], WHOLE[:-2] + b"Content-Length: 50\r\n\r\nab"])
def test_a_half_sent_request_has_an_end_however_it_trickles(server: Any, sent: bytes) -> None:
    connection = connect(server, sent)
    wait_until(lambda: halfway(server) == 1)
    server.maintenance(time.time() + IDLE_SECONDS / 2)
    connection.sendall(b"c")
    later = time.time() + REQUEST_SECONDS + 1
    for channel in list(server.active_channels.values()):
        channel.last_activity = later  # a byte has just come
    server.maintenance(later)
    assert read_all(connection) == 0
    wait_until(lambda: not server.active_channels)


def test_an_answer_that_is_not_taken_has_an_end(server: Any) -> None:
    connection = connect(server, WHOLE)
    wait_until(
        lambda: any(
            c.is_halfway() and not c.requests for c in list(server.active_channels.values())
        )
    )
    server.maintenance(time.time() + REQUEST_SECONDS + 1)
    wait_until(lambda: not server.active_channels)
    assert read_all(connection) < LARGE


def test_a_silent_connection_has_an_end_and_a_busy_one_has_none(server: Any) -> None:
    silent = connect(server, b"")
    wait_until(lambda: len(server.active_channels) == 1)
    server.maintenance(time.time() + IDLE_SECONDS + 1)
    assert read_all(silent) == 0
    honest = connect(server, WHOLE)
    server.maintenance(time.time())
    assert read_all(honest) > LARGE


def test_who_has_kept_us_waiting_longest_makes_room(server: Any) -> None:
    held = [connect(server, WHOLE[:20]) for _ in range(CONNECTIONS + 10)]
    honest = connect(server, WHOLE)
    assert read_all(honest) > LARGE
    assert read_all(held[0]) == 0
    assert len(server.active_channels) <= CONNECTIONS + 1
    for connection in held:
        connection.close()


def test_many_requests_in_one_go_hold_no_thread(server: Any) -> None:
    held = [connect(server, WHOLE * 20) for _ in range(4)]  # the server has two threads
    honest = connect(server, WHOLE)
    assert read_all(honest) > LARGE
    for connection in held:
        connection.close()


def test_an_address_that_cannot_be_had_is_refused(server: Any) -> None:
    with pytest.raises(RunError, match="cannot be listened on"):
        open_server(int(server.effective_port))
    with pytest.raises(ConfigError, match="port 70000"):
        open_server(70_000)


@pytest.mark.parametrize(
    "sent",
    [
        WHOLE[:-2] + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        WHOLE.replace(b"GET /", b"GET http://[/"),
    ],
)
def test_numbers_and_addresses_that_are_none_get_a_400_and_no_trace(
    server: Any, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(server, sent) as connection:
        assert connection.recv(2**16).startswith(b"HTTP/1.1 400 ")
    # That its thread was still busy with another is said on a machine that is.
    assert not [record for record in caplog.records if record.name != "waitress.queue"]
