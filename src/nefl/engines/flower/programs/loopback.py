"""Flower's programs on this machine, started and ended together.

For trying, for tests and for measuring: a SuperLink that simulates nodes, or one with SuperNodes on
loopback, insecure or with TLS and node keys as on real machines.
"""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from nefl.engines.flower.programs.certificates import ServerFiles, make_certificates, make_node_key
from nefl.engines.flower.programs.environment import HOST, free_port, quiet_environment
from nefl.engines.processes import descendants, end_processes, send_signal
from nefl.errors import RunError

CONNECTION = "loopback"
START_SECONDS = 60.0
REGISTER_AT_ONCE = 4
"""Programs that register nodes at the same time; each spends most of its time starting."""
GRACE_SECONDS = 15.0
"""How long a program may take to end; a node has others to end before."""


class Loopback:
    """A federation on this machine; a context that ends every process it started.

    Args:
        folder: for connections, keys, certificates and the programs' logs.
        secure: with TLS and node keys.
        simulation: nodes are simulated by Flower with Ray, none are started.
        database: the SuperLink keeps what it has in a file and goes on with it after a restart;
            in memory otherwise.
    """

    def __init__(
        self,
        folder: Path,
        *,
        secure: bool = False,
        simulation: bool = False,
        database: bool = True,
    ) -> None:
        self.folder = folder
        self.simulation = simulation
        self.database = database
        self.environment = quiet_environment(folder / "home")
        self.port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started: set[str] = set()
        (folder / "home").mkdir(parents=True, exist_ok=True)
        self.files = self._secure_files() if secure else None
        self._write_connection()

    def __enter__(self) -> "Loopback":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End everything."""
        self.end(*reversed(list(self._processes)))

    def start_server(self) -> None:
        """Start the SuperLink and wait until it listens.

        Raises:
            RunError: if it does not.
        """
        command = ["flower-superlink", "--host", HOST, "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation"]
        if self.database:
            command += ["--database", str(self.folder / "superlink.db")]
        if self.simulation:
            command += ["--simulation", "--control-api-address", f"{HOST}:{free_port()}"]
        if self.files is None:
            command += ["--insecure"]
        else:
            command += ["--ssl-ca-certfile", str(self.files.authority)]
            command += ["--ssl-certfile", str(self.files.certificate)]
            command += ["--ssl-keyfile", str(self.files.key), "--enable-supernode-auth"]
        self.start("superlink", command)
        deadline = time.monotonic() + START_SECONDS
        while not self._listens():
            if self._processes["superlink"].poll() is not None or time.monotonic() > deadline:
                raise RunError(f"the SuperLink did not start; see {self.log('superlink')}")
            time.sleep(0.2)

    def register(self, *names: str) -> None:
        """Make nodes' keys where they have none, and register them with the SuperLink.

        Raises:
            RunError: if the SuperLink does not take one.
        """
        with ThreadPoolExecutor(REGISTER_AT_ONCE) as pool:
            list(pool.map(self._register, names))

    def _register(self, name: str) -> None:
        key = self.make_key(name)
        public = key.with_name(f"{key.name}.pub")
        command = ["flwr", "supernode", "register", str(public), CONNECTION, "--name", name]
        done = self._call(command)
        if done.returncode:
            raise RunError(f"{name}: was not registered: {done.stdout[-500:]}")

    def make_key(self, name: str) -> Path:
        """Return a node's private key, making it if it is not there."""
        key = self.folder / "keys" / name
        if not key.exists():
            make_node_key(key.parent, name)
        return key

    def start_node(
        self,
        name: str,
        config: Mapping[str, object],
        *,
        warm: bool = True,
        poll: float | None = None,
    ) -> None:
        """Start a node, its key registered before where the federation is secure.

        Args:
            name: what to call it here.
            config: its node config.
            warm: with a trainer that stays alive.
            poll: seconds between two looks for work; as Flower does if left out.
        """
        command = ["nefl", "flower", "node", "--superlink", f"{HOST}:{self.port}"]
        if self.files is None:
            command += ["--insecure"]
        else:
            command += ["--root-certificates", str(self.files.authority)]
            command += ["--auth-supernode-private-key", str(self.make_key(name))]
        command += ["--node-config", " ".join(f"{k}={_toml(v)}" for k, v in config.items())]
        command += [] if warm else ["--cold"]
        command += [] if poll is None else ["--poll", str(poll)]
        self.start(name, command)

    def run(
        self, app: Path, settings: Mapping[str, object], nodes: int = 0, *, name: str = "run"
    ) -> "subprocess.Popen[bytes]":
        """Start a run of an app; its log is streamed into a file."""
        command = ["flwr", "run", str(app), CONNECTION, "--stream"]
        # In one text: of several, Flower forgets all but the last key of a section.
        given = " ".join(f"{key}={_toml(value)}" for key, value in settings.items())
        command += ["--run-config", given] if given else []
        if self.simulation:
            command += [
                "--federation-config",
                f"num-supernodes={nodes} client-resources-num-cpus=1",
            ]
        return self.start(name, command)

    def wait(self, name: str = "run", limit: float = 3600.0) -> None:
        """Wait until the newest run is over.

        Raises:
            RunError: if it failed, or is not over after so many seconds.
        """
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            if not self.alive("superlink"):
                raise RunError(f"the SuperLink ended before the run; see {self.log('superlink')}")
            # The stream of its log may break off before the run does: only the SuperLink knows.
            # It ends without an error also where the server's part of the app was killed.
            if not self.alive(name):
                status, details = self.status()
                if status == "finished:completed":
                    return
                if status.startswith("finished"):
                    raise RunError(f"the run is {status}: {details}; see {self.log(name)}")
            time.sleep(2)
        raise RunError(f"the run is not over after {limit:g} s; see {self.log(name)}")

    def status(self) -> tuple[str, str]:
        """Return the SuperLink's word on the newest run, and the reason; empty if it has none."""
        done = self._call(["flwr", "ls", CONNECTION, "--limit", "1", "--format", "json"])
        try:
            run = json.loads(done.stdout)["runs"][0]
            return str(run["status"]), str(run["status-details"])
        except (ValueError, KeyError, IndexError, TypeError):
            return "", done.stdout[-200:]

    def start(self, name: str, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        """Start a program in a session of its own; its output goes to a log file."""
        mode = "ab" if name in self._started else "wb"  # a new federation, a new log
        self._started.add(name)
        with self.log(name).open(mode) as log:
            process = subprocess.Popen(
                [self._program(command[0]), *command[1:]],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes[name] = process
        return process

    def end(self, *names: str, kill: bool = False) -> None:
        """End programs and all they have started, at once or politely."""
        found = [self._processes.pop(name) for name in names if name in self._processes]
        end_processes(found, grace=0.0 if kill else GRACE_SECONDS)

    @contextlib.contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """Let a program and all it has started hang for a while."""
        pid = self._processes[name].pid
        held = [pid, *descendants(pid)]
        for each in held:
            send_signal(each, signal.SIGSTOP)
        try:
            yield
        finally:
            for each in held:
                send_signal(each, signal.SIGCONT)

    def log(self, name: str) -> Path:
        """Return the file with what a program says."""
        return self.folder / f"{name}.log"

    def pids(self) -> dict[str, int]:
        """Return the numbers of the processes that were started, by name."""
        return {name: process.pid for name, process in self._processes.items()}

    def alive(self, name: str) -> bool:
        """Whether a program is running."""
        return name in self._processes and self._processes[name].poll() is None

    def _call(self, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self._program(command[0]), *command[1:]],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def _program(self, name: str) -> str:
        path = Path(sys.executable).parent / name
        return str(path) if path.exists() else name

    def _secure_files(self) -> ServerFiles:
        return make_certificates(self.folder / "certificates", [HOST])

    def _write_connection(self) -> None:
        trust = "insecure = true\n"
        if self.files is not None:
            trust = f"root-certificates = {_toml(str(self.files.authority.absolute()))}\n"
        (self.folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "{HOST}:{self.port}"\n{trust}',
            encoding="utf-8",
        )

    def _listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(0.5)
            return probe.connect_ex((HOST, self.port)) == 0


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
