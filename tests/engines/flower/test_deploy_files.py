"""The page about deployments followed to the letter, and the commands of its files as processes."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from nefl.config import ClientsConfig, RunConfig
from nefl.engines.flower.programs.app_files import write_app
from nefl.engines.flower.programs.certificates import make_certificates, make_node_key
from nefl.engines.flower.programs.environment import free_port, quiet_environment
from nefl.engines.processes import end_processes
from tests.deploy_files import DEPLOY, PAGE, blocks, compose

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]

LIMIT = 1500.0


@contextmanager
def started(command: list[str], folder: Path, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A program that ends, with all that it has started, when the test does."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=quiet_environment(folder / ".flwr"),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end_processes([process], grace=10.0)


def wait_for(what: str, happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not happened():
        assert time.monotonic() < deadline, f"{what}: takes too long"
        time.sleep(0.5)


def with_ports(text: str, ports: Mapping[str, int]) -> str:
    for old, new in ports.items():
        text = text.replace(old, str(new))
    return text


def test_the_page_is_followed_from_an_empty_folder(tmp_path: Path) -> None:
    """On other ports alone; what it starts, it ends."""
    ports = {port: free_port() for port in ("8000",)}
    steps = blocks(PAGE, "sh")
    assert len(steps) == 7
    script = with_ports("set -eu\n" + "\n".join(steps), ports)
    with started(["bash", "-c", script], tmp_path, tmp_path / "page.log") as page:
        page.wait(LIMIT)
    said = (tmp_path / "page.log").read_text()
    assert page.returncode == 0, said[-3000:]
    assert (tmp_path / "runs/first/summary.json").exists()
    assert "edge-1" in said.rpartition("counted")[2]  # in the table of nodes


class Containers:
    """The compose file's services as processes of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.superlink, self.gate = free_port(), free_port()
        for name in ("state", "runs"):
            (folder / name).mkdir()
        make_certificates(folder / "keys", ["gate"])
        for name in ("edge-0", "edge-1"):
            make_node_key(folder / "keys", name)
        write_app(folder / "app", "digits", RunConfig(clients=ClientsConfig(count=2, per_round=2)))
        home = folder / ".flwr"
        home.mkdir()
        text = self.here((DEPLOY / "connection.toml").read_text())
        other = f'\n[superlink.gate]\naddress = "localhost:{self.gate}"\n'
        other += f'root-certificates = "{folder}/keys/ca.crt"\n'
        (home / "config.toml").write_text(text + other)
        (folder / "nginx.conf").write_text(self.here((DEPLOY / "nginx.conf").read_text()))

    def here(self, text: str) -> str:
        """Return what stands in a file with the addresses and folders of this test."""
        for old, new in {
            "gate:8443": f"localhost:{self.gate}",
            "listen 8443": f"listen 127.0.0.1:{self.gate}",
            "superlink:8000": f"127.0.0.1:{self.superlink}",
            "8000": str(self.superlink),
            "0.0.0.0": "127.0.0.1",  # noqa: S104 - what is replaced
            "/keys/": f"{self.folder}/keys/",
            "/state/": f"{self.folder}/state/",
            "/opt/nefl/health.py": str(DEPLOY / "health.py"),
            "/tmp/nginx": f"{self.folder}/nginx",  # noqa: S108 - what is replaced
        }.items():
            text = text.replace(old, new)
        return text

    def command(self, service: str, *more: str) -> list[str]:
        program, *words = compose()["services"][service]["command"]
        path = str(Path(sys.executable).parent / program)
        return [path, *(self.here(word) for word in words), *more]

    def start(self, service: str, *more: str) -> AbstractContextManager[object]:
        return started(self.command(service, *more), self.folder, self.folder / f"{service}.log")

    def healthy(self, service: str, port: int | None = None) -> bool:
        _, _, *words = compose()["services"][service]["healthcheck"]["test"]
        words = [self.here(word) for word in words]
        if port is not None:
            words = [word.replace("9094", str(port)) for word in words]
        return subprocess.run([sys.executable, *words], check=False).returncode == 0

    def flwr(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(Path(sys.executable).parent / "flwr"), *words],
            env=quiet_environment(self.folder / ".flwr"),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_the_containers_commands_work_and_the_gate_keeps_others_out(tmp_path: Path) -> None:
    made = Containers(tmp_path)
    gate = ["nginx", "-e", "stderr", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    ports = [free_port(), free_port()]
    with (
        made.start("superlink"),
        started([*gate, "-g", "daemon off;"], tmp_path, tmp_path / "gate.log"),
    ):
        wait_for("the SuperLink", lambda: made.healthy("superlink"))
        wait_for("the gate", (tmp_path / "nginx.pid").exists)
        for name in ("edge-0", "edge-1"):
            done = made.flwr("supernode", "register", f"keys/{name}.pub", "here", "--name", name)
            assert done.returncode == 0, done.stdout
        with (
            made.start("node-0", f"--port={ports[0]}"),
            made.start("node-1", f"--port={ports[1]}"),
        ):
            for number, port in enumerate(ports):
                wait_for(f"node {number}", partial(made.healthy, f"node-{number}", port))
            settings = f'rounds=1 clients.count=2 clients.per_round=2 out="{tmp_path}/runs/first"'
            refused = made.flwr("run", "app", "gate", "--run-config", settings)
            assert refused.returncode != 0
            assert "403" in refused.stdout
            done = made.flwr("run", "app", "here", "--run-config", settings)
            assert done.returncode == 0, done.stdout
            wait_for("the run", (tmp_path / "runs/first/summary.json").exists)
