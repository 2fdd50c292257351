"""Thin clients and the trainer beside them: same bits, and today's way where no trainer answers."""

import json
import os
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

import nefl
from nefl.config.reading import with_settings
from nefl.engines.flower.node import handover, warm_client
from nefl.engines.flower.node.handover import HandoverError, listen_at, receive, send, write_parts
from nefl.engines.flower.node.trainer import Trainer
from nefl.engines.flower.programs.environment import PLACE
from nefl.engines.flower.server.mailbox import Grid
from nefl.flower import connect_to

from .conftest import LocalGrid, population

ROOM = 10**12
ECHO = """
import os, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from nefl.errors import DataError

app = ClientApp()

@app.query("echo")
def echo(message, context):
    seen = context.state.get("seen", ConfigRecord({"times": 0}))
    context.state["seen"] = ConfigRecord({"times": int(seen["times"]) + 1})
    wish = message.content["wish"]["wish"]
    if wish == "data":
        raise DataError("the data is not there")
    if wish == "system":
        raise FileNotFoundError("mine.npz")
    if wish == "end":
        raise SystemExit(0)
    if wish == "long":
        time.sleep(600)
    return Message(RecordDict({"wish": message.content["wish"]}), reply_to=message)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a trainer's socket is to be, told to clients; `echo:app` can be imported."""
    (tmp_path / "echo.py").write_text(ECHO)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "echo", raising=False)
    folder = tmp_path / "node"
    folder.mkdir(0o700)
    monkeypatch.setenv(PLACE, str(folder / "trainer.sock"))
    return folder / "trainer.sock"


@contextmanager
def serving(place: Path, *, memory: int = ROOM, most: int = handover.MOST_BYTES) -> Iterator[Any]:
    """Run a trainer in a thread of this process; yield the reasons why it ended."""
    reasons: list[str] = []
    listener = listen_at(place)

    def serve() -> None:
        with suppress(OSError), listener:  # it was shut down below
            reasons.append(Trainer(memory, most).serve(listener))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield reasons, thread
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


def call(wish: str, run: int = 1, state: RecordDict | None = None) -> tuple[Message, Context]:
    message = Message(RecordDict({"wish": ConfigRecord({"wish": wish})}), 7, "query.echo")
    kept = RecordDict() if state is None else state
    return message, Context(run, 7, {"partition-id": 0}, kept, {})


def ask(wish: str, run: int = 1, state: RecordDict | None = None) -> Message:
    return warm_client.warm_client("echo:app")(*call(wish, run, state))


def no_fallback(_app: str) -> None:
    raise AssertionError("answered in the client's own process")


def test_a_thin_client_loads_no_torch_and_no_data() -> None:
    script = (
        "import sys, flwr.supernode.runtime.run_clientapp\n"
        "from nefl.engines.flower.node.warm_client import warm_client\n"
        "app = warm_client()\n"
        "heavy = {'torch', 'sklearn', 'datasets', 'flwr_datasets', 'nefl.data', 'nefl.config'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_same_bits_through_a_trainer(
    quick: dict[str, Any], tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a method whose clients keep something from round to round."""
    changes = {"rounds": 2, "model.method": "scaffold", "clients": {"count": 3, "per_round": 3}}
    quick = with_settings(quick, {**changes, "data.train": 60, "engine.flower.poll": 0.01})
    here = nefl.train(quick, tmp_path / "here")
    monkeypatch.setattr(warm_client, "load_client", no_fallback)
    grid = LocalGrid(warm_client.warm_client(), population(3))
    with serving(place):
        connect = connect_to(cast("Grid", grid))
        there = nefl.train(quick, tmp_path / "there", connect=connect)
    assert here.summary["state_sha256"] == there.summary["state_sha256"]
    assert any(key.startswith("nefl-memory") for key in grid._state[1000])


def test_what_a_client_keeps_comes_and_goes_with_its_message(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_client, "load_client", no_fallback)
    one, other = RecordDict(), RecordDict({"old": MetricRecord({"x": 1.0})})
    with serving(place):
        for _ in range(2):
            ask("well", state=one)
        reply = ask("well", state=other)
    assert dict(reply.content["wish"]) == {"wish": "well"}
    assert reply.metadata.dst_node_id == 1
    assert one["seen"]["times"] == 2
    assert other["seen"]["times"] == 1
    assert set(other) == {"old", "seen"}


@pytest.mark.parametrize(
    ("wish", "kind", "text"),
    [
        ("data", nefl.DataError, "the data is not there"),
        ("system", FileNotFoundError, "mine.npz"),
        ("end", nefl.RunError, "SystemExit: 0"),
    ],
)
def test_an_error_in_the_trainer_is_the_clients_own(
    place: Path, monkeypatch: pytest.MonkeyPatch, wish: str, kind: type[Exception], text: str
) -> None:
    """Also one that looks as if the trainer could not be reached."""
    monkeypatch.setattr(warm_client, "load_client", no_fallback)
    state = RecordDict()
    with serving(place), pytest.raises(kind, match=text):
        ask(wish, state=state)
    assert not state


def test_without_a_trainer_the_client_answers_itself(
    place: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = RecordDict()
    ask("never there", state=state)
    listen_at(place).close()  # what a killed trainer leaves behind
    assert place.exists()
    ask("stale", state=state)
    assert state["seen"]["times"] == 2
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "No such file" in said[0]
    assert "refused" in said[1]
    with serving(place):  # a new trainer takes the place of the old socket
        ask("anew", state=state)
    monkeypatch.delenv(PLACE)
    ask("cold", state=state)
    assert state["seen"]["times"] == 4
    assert len(caplog.records) == 2


def test_another_run_gets_another_trainer(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code and data of a run are loaded once; those of the next may have changed."""
    monkeypatch.setattr(warm_client, "load_client", no_fallback)
    state = RecordDict()
    with serving(place) as (reasons, thread), ThreadPoolExecutor() as pool:
        ask("first", run=1)
        asked = pool.submit(ask, "second", run=2, state=state)
        thread.join()
        with serving(place) as (later, _):  # as whoever keeps it starts another
            asked.result()
            assert not later
    assert reasons == ["it was asked for another run"]
    assert state["seen"]["times"] == 1


def test_without_another_trainer_the_client_answers_itself(
    place: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_client, "NEXT_SECONDS", 0.0)
    with serving(place):
        ask("first", run=1)
        ask("second", run=2)
    assert caplog.text.count("training in this process") == 1


def test_a_trainer_that_holds_too_much_ends(place: Path) -> None:
    with serving(place, memory=1) as (reasons, thread):
        ask("well")
        thread.join()
    assert "may hold 1" in reasons[0]


def test_a_message_that_is_too_large_is_answered_by_the_client(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(place, most=2000) as (reasons, _):
        ask("x" * 5000)
        ask("small")
        assert not reasons
    assert "at most 2000 are taken): training in this process" in caplog.text
    assert caplog.text.count("training in this process") == 1


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (struct.pack(">Q", 2**40), "a heading of 1099511627776 bytes"),
        (json.dumps({"parts": [2**40]}).encode(), "a message of 1099511627776 bytes"),
        (json.dumps({"parts": [-5]}).encode(), "negative"),
        (b"[]", "cannot be read"),
        (b"{", "cannot be read"),
    ],
)
def test_sizes_are_checked_before_memory_is_given(sent: bytes, said: str) -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(sent if len(sent) == 8 else struct.pack(">Q", len(sent)) + sent)
        with pytest.raises(HandoverError, match=said):
            receive(other)


def test_the_socket_is_the_users_alone(
    place: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(place):
        assert stat.S_IMODE(place.lstat().st_mode) == 0o600
        place.chmod(0o666)
        ask("a socket for all")
        place.chmod(0o600)
        place.parent.chmod(0o755)
        ask("a folder for all")
        with pytest.raises(HandoverError, match="is not this user's alone"):
            listen_at(place.parent / "another.sock")
        place.parent.chmod(0o700)
    assert caplog.text.count("is not this user's alone") == 2
    one, other = socket.socketpair()
    with one, other:
        handover.check_peer(one)
        nobody = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: nobody)
        with pytest.raises(HandoverError, match="the process at the other end is user"):
            handover.check_peer(one)


def test_a_trainer_ends_with_the_client_that_it_works_for(place: Path) -> None:
    """What it trains would be for nobody, and the next client would wait for it."""
    command = [sys.executable, "-m", "nefl.engines.flower.node.trainer", str(place), str(ROOM)]
    with subprocess.Popen(command) as trainer:
        while not place.exists():
            assert trainer.poll() is None
            time.sleep(0.05)
        whose = {"run": 1, "path": sys.path, "app": "echo:app"}
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(place))
            receive(connection)
            send(connection, {"whose": whose}, write_parts(*call("long")))
        assert trainer.wait(60) == 0


@pytest.mark.parametrize("app", ["", "echo", ":app", "echo:"])
def test_a_client_is_named_with_its_module(app: str) -> None:
    with pytest.raises(nefl.ConfigError, match="give it as package.module:name"):
        warm_client.warm_client(app)


def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(nefl.ConfigError, match="is neither a ClientApp nor"):
        warm_client.load_client("os:sep")
