"""Clients that are forked from a process that has imported Flower."""

import importlib
import multiprocessing
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from typing import Any

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec

from nefl.engines.flower.programs import supernode
from nefl.engines.flower.programs.superexec import ForkingExecutor

Asked = tuple[str, dict[str, str]]


@pytest.fixture
def asked() -> "Iterator[tuple[str, Queue[Asked]]]":
    """The address of something that refuses all requests, and what it was asked."""
    requests: Queue[Asked] = Queue()

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.put((self.path, dict(self.headers)))
            self.send_error(404)

        def log_message(self, *_given: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", requests
        server.shutdown()


def spec(address: str) -> ExecutionSpec:
    return ExecutionSpec(
        TaskType.CLIENT_APP, address, "a-token", True, None, False, os.getpid(), True, task_id=1
    )


def test_a_client_is_forked_and_everything_else_started(
    asked: "tuple[str, Queue[Asked]]", monkeypatch: pytest.MonkeyPatch
) -> None:
    address, requests = asked
    started: list[list[str]] = []
    executor = ForkingExecutor()
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
    before = set(multiprocessing.active_children())
    executor.launch(spec(address))
    (child,) = set(multiprocessing.active_children()) - before
    path, headers = requests.get(timeout=60)
    child.join(60)
    assert child.exitcode, "a client whose task cannot be had ends with an error"
    assert path.startswith("/"), path
    assert "a-token" in " ".join(headers.values()), "it came with its own token"
    assert not started, "no program was started for it"
    executor.launch(replace(spec(address), task_type=TaskType.SERVER_APP))
    executor.launch(replace(spec(address), runtime_dependency_install=True))
    assert [command[0] for command in started] == ["flwr-serverapp", "flwr-clientapp"]


def test_the_supernode_starts_the_program_that_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = importlib.import_module(supernode.LOOP)
    monkeypatch.setitem(loop.__dict__, "subprocess", subprocess)
    started: list[list[str]] = []

    def note(command: list[str], **_given: Any) -> None:
        started.append(command)

    monkeypatch.setattr(subprocess, "Popen", note)
    supernode.fork_clients()
    loop.__dict__["subprocess"].Popen(["flower-superexec", "--insecure"])
    loop.__dict__["subprocess"].Popen(["another", "--insecure"])
    assert started[0][-3:] == ["-c", supernode.FORKING, "--insecure"]
    assert started[1] == ["another", "--insecure"]
