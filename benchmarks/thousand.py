"""Many nodes over Flower: what a round takes, and whether the server's memory stays level.

    python benchmarks/thousand.py simulated [--nodes 1000] [--per-round 100] [--rounds 6]
    python benchmarks/thousand.py superlink [--nodes 200] [--per-round 50] [--rounds 4]

`simulated` trains the digits over Flower's own simulation. `superlink` starts a real SuperLink on
loopback, which keeps what it has in memory, and light nodes in this process: each speaks Flower's
protocol, says which client it is and returns the weights it was sent; nobody trains, so what
remains is what the server and the SuperLink do. Memory is that of the process with the server in
it, after each round.
"""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supernode.fleet_http_connection import http_request_response

from nefl.artifacts.notes import read_log
from nefl.config import ClientsConfig, RunConfig
from nefl.engines.flower.programs.app_files import write_app
from nefl.engines.flower.programs.environment import HOST
from nefl.engines.flower.programs.loopback import Loopback
from nefl.engines.flower.server.run_settings import read_run_settings
from nefl.engines.processes import descendants
from nefl.flower import nested_client
from nefl.running.assembly import assemble

POLL_SECONDS = 3.0
"""How often a SuperNode looks for work."""

DEFAULTS = {"simulated": (1000, 100, 6), "superlink": (200, 50, 4)}
"""Nodes, updates a round, and rounds."""

THREADS = 16
"""Threads that all light nodes share."""


def settings(nodes: int, per_round: int, rounds: int, out: Path) -> dict[str, Any]:
    return {
        "recipe": "digits",
        "rounds": rounds,
        "out": str(out),
        "clients.count": nodes,
        "clients.per_round": per_round,
        "local.epochs": 1,
        "engine.flower.patience": 600.0,
        "settings": f"server.evaluate_every={rounds} server.checkpoint_every={rounds}",
    }


def memory_of(pid: int) -> float:
    """Return the megabytes of memory that a process has in use."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def server_process(program: str) -> int | None:
    """Return the process in which the server's part of the app runs."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if any(Path(word.decode()).name == program for word in words[:2]):
                return pid
    return None


class Watching:
    """Notes the server's memory when a round is done."""

    def __init__(self, program: str, out: Path) -> None:
        self._program = program
        self._out = out
        self.megabytes: dict[int, float] = {}
        self.over = threading.Event()

    def run(self) -> None:
        """Look until it is over."""
        while not self.over.wait(0.2):
            done = [e["round"] for e in rounds_of(self._out)]
            pid = server_process(self._program)
            with contextlib.suppress(OSError):
                if pid is not None and done and done[-1] not in self.megabytes:
                    self.megabytes[done[-1]] = memory_of(pid)


def rounds_of(out: Path) -> list[dict[str, Any]]:
    if not (out / "metrics.jsonl").exists():
        return []
    return [event for event in read_log(out) if event["event"] == "round"]


@contextlib.contextmanager
def watched(program: str, out: Path) -> Iterator[Watching]:
    watching = Watching(program, out)
    thread = threading.Thread(target=watching.run)
    thread.start()
    try:
        yield watching
    finally:
        watching.over.set()
        thread.join()


def tell(out: Path, watching: Watching) -> None:
    """Print the rounds, and how many updates counted.

    With an example or two a client some move the parameters too far for `server.norm_limit`.
    """
    events = list(read_log(out))
    started = next(e["time"] for e in events if e["event"] == "start")
    joined = [e["time"] for e in events if e["event"] == "joined"]
    print(
        f"{len(joined)} nodes: asked from {started[11:19]}, the last let in at {joined[-1][11:19]}"
    )
    for event in rounds_of(out):
        number, refused = event["round"], len(event["failures"])
        megabytes = watching.megabytes.get(number, float("nan"))
        print(
            f"round {number}: {event['tasks'] - refused} of {event['tasks']} updates counted in "
            f"{event['seconds']:.1f} s, server {megabytes:.0f} MB"
        )


def simulated(nodes: int, per_round: int, rounds: int, folder: Path) -> None:
    out, app = folder / "run", folder / "nested"
    write_app(app, "digits", RunConfig(clients=ClientsConfig(count=nodes, per_round=per_round)))
    with Loopback(folder / "flower", simulation=True) as loopback:
        loopback.start_server()
        with watched("flwr-simulation", out) as watching:
            loopback.run(app, settings(nodes, per_round, rounds, out), nodes=nodes)
            loopback.wait("run")
    tell(out, watching)


class LightNode:
    """A node that returns what it is sent, at the pace of a SuperNode."""

    def __init__(self, address: str, client: int, app: Any, stack: contextlib.ExitStack) -> None:
        self._config: dict[str, bool | float | int | str] = {"partition-id": client}
        self._app = app
        self._link = stack.enter_context(http_request_response(address, insecure=True))

    def look(self) -> bool:
        """Do what is to be done, if there is anything."""
        node, receive, send, _, _, pull, push, confirm = self._link
        found = receive()
        if found is None:
            return False
        message, tree = found
        run, number = message.metadata.run_id, message.metadata.message_id
        names = [part.object_id for part in iterate_object_tree(tree)]
        parts = pull_objects(names, lambda name: pull(run, name))
        confirm(run, number)
        message = cast("Message", inflate_object_from_contents(number, parts))
        message.metadata.__dict__["_message_id"] = number
        reply = self._app(message, Context(run, node, self._config, RecordDict(), {}))
        reply.metadata.__dict__["_message_id"] = reply.object_id
        back = get_all_nested_objects(reply)
        wanted, session = send(reply, get_object_tree(reply), 0.0)
        for each in wanted:
            push(run, session, each, back[each].deflate())
        return True


def superlink(nodes: int, per_round: int, rounds: int, folder: Path) -> None:
    out, app = folder / "run", folder / "nested"
    given = settings(nodes, per_round, rounds, out)
    family = assemble(read_run_settings(given).config).family
    light = nested_client(family, lambda _model, _task, _context: (10, {"loss": 0.0}))
    write_app(app, "digits", RunConfig(clients=ClientsConfig(count=nodes, per_round=per_round)))
    over = threading.Event()

    def work(mine: list[LightNode]) -> None:
        while not over.is_set():
            began = time.monotonic()
            for node in mine:
                while not over.is_set() and node.look():
                    pass
            over.wait(max(0.0, POLL_SECONDS - (time.monotonic() - began)))

    at = folder / "flower"
    with Loopback(at, database=False) as loopback, contextlib.ExitStack() as stack:
        loopback.start_server()
        address = f"{HOST}:{loopback.port}"
        began = time.monotonic()
        made = [LightNode(address, client, light, stack) for client in range(nodes)]
        print(f"{nodes} nodes let in by the SuperLink in {time.monotonic() - began:.1f} s")
        with ThreadPoolExecutor(THREADS) as pool, watched("flwr-serverapp", out) as seen:
            at_work = [pool.submit(work, made[start::THREADS]) for start in range(THREADS)]
            try:
                loopback.run(app, given)
                loopback.wait("run")
            finally:
                over.set()
                for each in at_work:
                    each.result()
    tell(out, seen)


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("simulated", "superlink"))
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--per-round", type=int)
    parser.add_argument("--rounds", type=int)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and end what was started
    measure = simulated if given.what == "simulated" else superlink
    nodes, per_round, rounds = DEFAULTS[given.what]
    with tempfile.TemporaryDirectory() as folder:
        measure(
            given.nodes or nodes,
            given.per_round or per_round,
            given.rounds or rounds,
            Path(folder),
        )


if __name__ == "__main__":
    main()
