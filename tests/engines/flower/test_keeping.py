"""Programs that are kept running, and what a node may be started with."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nefl import ConfigError, RunError
from nefl.engines.flower.programs import keeping
from nefl.engines.flower.programs.environment import PLACE
from nefl.engines.flower.programs.keeping import Kept
from nefl.engines.flower.programs.node import NodeOptions, keep_node

ADDRESS = "127.0.0.1:1"


def kept(code: str, told: list[str]) -> Kept:
    return Kept("program", lambda: [sys.executable, "-S", "-c", code], os.environ, told.append)


def ended(program: Kept) -> int:
    """Start a program if it is due, and wait for its end."""
    while (code := program.look()) is None:
        time.sleep(0.01)
    return code


def test_a_program_is_started_again_with_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(keeping, "time", SimpleNamespace(monotonic=lambda: now[0]))
    told: list[str] = []
    program = kept("raise SystemExit(3)", told)
    for pause in (1, 2, 4, 8, 15, 15):
        assert ended(program) == 3
        assert f"exit code 3); starting it again in {pause} s" in told[-1]
        program.look()
        assert not program.alive, "it is not time yet"
        now[0] += pause
    program.look()
    now[0] += keeping.STEADY_SECONDS
    ended(program)
    assert "again in 1 s" in told[-1], "it had recovered"


def test_a_program_that_ends_as_it_should_is_started_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(keeping, "time", SimpleNamespace(monotonic=lambda: now[0]))
    told: list[str] = []
    program = kept("", told)
    program.look()
    now[0] += 5
    ended(program)
    assert "again in 0 s" in told[-1]


def test_a_program_is_ended_with_all_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "child"
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(mark)!r}, 'w').write(str(child.pid) + '.')\n"
        "time.sleep(600)\n"
    )
    program = kept(code, [])
    program.look()
    while not mark.exists() or not mark.read_text().endswith("."):
        time.sleep(0.01)
    program.end()
    assert not program.alive
    while is_alive(int(mark.read_text()[:-1])):
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_options_that_no_start_would_mend_are_an_error() -> None:
    with pytest.raises(RunError, match="the program does not take its options"):
        ended(kept("raise SystemExit(2)", []))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"superlink": "localhost"}, "--superlink 'localhost': give it as host:port"),
        ({"insecure": True, "root_certificates": Path("ca")}, "give one of them"),
        ({"insecure": True, "auth_supernode_private_key": Path("k")}, "needs TLS"),
        ({"root_certificates": Path("nowhere/ca.crt")}, "ca.crt: cannot be read"),
        ({"poll": 0.0}, "--poll 0: give 0.05 to 3 seconds"),
        ({"poll": float("nan")}, "--poll nan: give 0.05 to 3 seconds"),
        ({"trainer_memory": 0}, "--trainer-memory 0: give more than 0 bytes"),
    ],
)
def test_a_node_with_options_that_cannot_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        NodeOptions(**{"superlink": ADDRESS, **options})


def test_the_supernode_gets_its_options(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").touch()
    (tmp_path / "key").touch()
    options = NodeOptions(
        ADDRESS,
        root_certificates=tmp_path / "ca.crt",
        auth_supernode_private_key=tmp_path / "key",
        node_config="tier=2",
        further=("--max-retries", "3"),
    )
    command = options.command()
    text = " ".join(command)
    assert command[3] == "-"
    assert f"--superlink {ADDRESS} --host 127.0.0.1 --port " in text
    assert f"--root-certificates {tmp_path / 'ca.crt'}" in text
    assert f"--auth-supernode-private-key {tmp_path / 'key'}" in text
    assert text.endswith("--node-config tier=2 --max-retries 3")
    assert "--insecure" not in text
    assert NodeOptions(ADDRESS, insecure=True, poll=0.5, port=7).command()[3] == "0.5"


def test_a_node_starts_its_supernode_beside_the_trainer_and_ends_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are programs of a line here, which note what they were given."""
    said = tmp_path / "said"
    code = "import os, sys, time; from pathlib import Path\n"
    trainer = f"{code}Path(sys.argv[1]).touch(); Path({str(said)!r}).touch(); time.sleep(600)"
    node = (
        f"{code}assert Path({str(said)!r}).exists(), 'before the trainer'\n"
        f"Path({str(said)!r}).write_text(os.environ[{PLACE!r}] + ' ' + str(os.getppid()))\n"
        "os.kill(os.getppid(), 15); time.sleep(600)"
    )
    real = subprocess.Popen

    def start(command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        chosen = trainer if "nefl.engines.flower.node.trainer" in command else node
        return real([sys.executable, "-S", "-c", chosen, *command[3:]], **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    keep_node(NodeOptions(ADDRESS, insecure=True), lambda _: None)
    place, parent = said.read_text().split()
    assert int(parent) == os.getpid()
    assert not Path(place).parent.exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_node_config_that_cannot_be_read_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    options = NodeOptions(ADDRESS, insecure=True, warm=False, node_config="tier=two")
    with pytest.raises(RunError, match="the SuperNode does not take its options"):
        keep_node(options, lambda _: None)
    assert "--node-config 'tier=two' cannot be read" in capfd.readouterr().err
