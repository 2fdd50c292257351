"""A whole federation on one machine: TLS, node keys, unequal nodes, and everything that goes wrong.

    python examples/flower_loopback.py [--folder FOLDER] [--rounds 4] [--calm]

The script makes an app, certificates and keys, starts a SuperLink and seven SuperNodes of different
tiers on loopback, and trains. Five nodes are honest, but two of them the operator forgot to list:
they are refused, and taken back when the list was mended. One node lies, another way in each round;
one is frail: it raises, then its process dies. A node without a registered key knocks. On the way
one honest node is stopped, so that it hangs, and goes on later; then the server itself is killed,
started again, and goes on from its checkpoint. Seven are asked and four are wanted, so no round
waits for those who hang or died. Every fault costs an update at most; the run ends with a model.

Nothing here goes by the clock: what is broken next waits for what the run's log says.

With --calm only the five honest nodes take part and nothing goes wrong: then the result is, bit for
bit, that of `nefl train` with the same settings.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from nefl.config import ClientsConfig, RunConfig
from nefl.engines.flower.programs.app_files import write_app
from nefl.engines.flower.programs.loopback import Loopback

TIERS = (1, 2, 3, 4, 5, 2, 3)
HONEST, FORGOTTEN, HANGS = 5, (3, 4), 0
WANTED = 4
INTRUDER = "intruder"

# The demonstration's client does wrong on purpose; an app of yours has nothing of the kind.
CLIENT = '''\
"""A client that does wrong if its node config tells it to."""

import json
import os
import signal
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from safetensors.torch import load, save

from nefl.engines.flower.messages import ANSWER, ARRAYS, WEIGHTS, read_order
from nefl.engines.flower.node.site_client import site_client

honest = site_client()
app = ClientApp()


@app.query("capability")
def capability(message: Message, context: Context) -> Message:
    return honest(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    role = context.node_config.get("role", "honest")
    number = read_order(message.content).task.round_number
    if role == "frail":
        Path(str(context.node_config["mark"])).touch()
        if number == 1:
            raise RuntimeError("out of memory, say")
        os.kill(os.getpid(), signal.SIGKILL)
    reply = honest(message, context)
    if role == "liar":
        lie(reply, number)
    return reply


def lie(reply: Message, number: int) -> None:
    packed = reply.content.array_records[ARRAYS][WEIGHTS]
    tensors = load(packed.data)
    if number == 1:
        tensors["fc.height"] = tensors.pop("fc.weight")
    elif number == 2:
        tensors["fc.weight"] = torch.zeros(3, 3)
    elif number == 3:
        tensors["fc.weight"] += torch.nan
    elif number == 4:
        tensors["fc.weight"] *= 1e6
    else:
        answer = reply.content.config_records[ANSWER]
        answer["task"] = json.dumps({**json.loads(answer["task"]), "submodel": 5})
    packed.data = save(tensors)
'''


def settings(rounds: int, *, calm: bool) -> dict[str, Any]:
    """Return the settings of the run; where all is calm, the same for nefl's own engines."""
    found: dict[str, Any] = {
        "recipe": "digits",
        "rounds": rounds,
        "clients.count": HONEST,
        "clients.per_round": HONEST,
        "clients.capability": "fixed",
        "local.epochs": 1,
        "server.quorum": 0.5,
        "server.norm_limit": 10.0,
        "engine.flower.deadline": 3600.0,
        "engine.flower.patience": 600.0,
        "settings": "server.evaluate_every=1 server.checkpoint_every=1",
    }
    if not calm:
        clients = len(TIERS)
        found |= {"clients.count": clients, "clients.per_round": WANTED}
        found |= {"clients.over_select": clients / WANTED, "engine.flower.patience": 5.0}
        found["settings"] += " clients.hold=1.0"
    return found


def registry(clients: int, forgotten: Collection[int] = ()) -> str:
    """Return the operator's file: which client each node is, its tier, and its limit."""
    lines = ['others = "refuse"']
    for number in range(clients):
        if number not in forgotten:
            lines += [f"[nodes.node{number}]", f"client = {number}", f"tier = {TIERS[number]}"]
            lines += [f"largest = {TIERS[number]}"]
    return "\n".join(lines) + "\n"


class Watch:
    """Looks into the run's log, where everything that happens is written."""

    def __init__(self, out: Path, limit: float) -> None:
        self._out = out
        self._deadline = time.monotonic() + limit

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield what is in the log."""
        path = self._out / "metrics.jsonl"
        for line in path.read_text().splitlines() if path.exists() else []:
            yield json.loads(line)

    def wait_for(self, what: str, happened: Callable[[], bool]) -> None:
        """Wait until something has happened."""
        while not happened():
            if time.monotonic() > self._deadline:
                raise SystemExit(f"{what}: takes too long; see the logs beside {self._out}")
            time.sleep(0.2)

    def wait_for_round(self, number: int) -> None:
        """Wait until a round is done."""
        self.wait_for(
            f"round {number}",
            lambda: sum(event["event"] == "round" for event in self.events()) >= number,
        )

    def wait_for_event(self, name: str, client: int) -> None:
        """Wait until something is said of a client."""
        self.wait_for(
            f"{name} of client {client}",
            lambda: any(e["event"] == name and e["client"] == client for e in self.events()),
        )

    def wait_for_end(self, loopback: Loopback, run: str) -> None:
        """Wait until the run is over."""
        loopback.wait(run, max(1.0, self._deadline - time.monotonic()))


def main() -> None:
    """Run the federation, then say what happened in it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--limit", type=float, default=1800.0)
    parser.add_argument("--calm", action="store_true")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and end what was started
    with folder_for(given.folder) as folder:
        out = federate(folder, given.rounds, given.limit, calm=given.calm)
        tell(out)


@contextmanager
def folder_for(given: Path | None) -> Iterator[Path]:
    """Use the given folder, or one that goes away again."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def federate(folder: Path, rounds: int, limit: float, *, calm: bool) -> Path:
    """Start everything, let it train, break what is to be broken; return the run's folder."""
    out, app = folder / "run", folder / "nested"
    clients = HONEST if calm else len(TIERS)
    config = RunConfig(clients=ClientsConfig(count=clients, per_round=clients))
    write_app(app, "digits", config)
    (app / "nested" / "client_app.py").write_text(CLIENT)
    (folder / "nodes.toml").write_text(registry(clients, () if calm else FORGOTTEN))
    wanted = settings(rounds, calm=calm)
    wanted |= {"out": str(out), "engine.flower.registry": str(folder / "nodes.toml")}
    with Loopback(folder / "flower", secure=True) as loopback:
        loopback.start_server()
        loopback.register(*(f"node{number}" for number in range(clients)))
        for number in range(clients):
            node: dict[str, Any] = {"partition-id": number, "num-partitions": clients}
            node |= {"role": {5: "liar", 6: "frail"}.get(number, "honest")}
            node |= {"mark": str(folder / "frail")}
            loopback.start_node(f"node{number}", node, warm=False)
        watch = Watch(out, limit)
        for number in range(clients):
            watch.wait_for(f"node{number}", partial(has_come, loopback.log(f"node{number}")))
        if not calm:
            loopback.start_node(
                INTRUDER, {"partition-id": 0, "num-partitions": clients}, warm=False
            )
        loopback.run(app, wanted)
        if not calm:
            break_things(loopback, watch, folder, wanted)
        watch.wait_for_end(loopback, "again" if not calm else "run")
        if not calm:
            print(f"the intruder: {refusal(loopback.log(INTRUDER))}")
    return out


def break_things(loopback: Loopback, watch: Watch, folder: Path, wanted: dict[str, Any]) -> None:
    """Mend the list of nodes, stop one of them, let it go on; kill the server and start it."""
    watch.wait_for("round 1", (folder / "frail").exists)
    (folder / "nodes.toml").write_text(registry(len(TIERS)))
    for client in FORGOTTEN:
        watch.wait_for_event("readmitted", client)
    with loopback.stopped(f"node{HANGS}"):
        print(f"stopped node{HANGS} when round 2 began")
        watch.wait_for_round(2)
    watch.wait_for_round(3)
    loopback.end("superlink", kill=True)
    loopback.end("run", kill=True)
    print("killed the server in round 4")
    loopback.start_server()
    loopback.run(folder / "nested", {**wanted, "resume": True}, name="again")
    print("started it again")


def has_come(log: Path) -> bool:
    """Whether a node says that the SuperLink has let it in."""
    return "SuperNode ID" in log.read_text(errors="replace")


def refusal(log: Path) -> str:
    """Return the line in which a node says that the SuperLink did not let it in."""
    lines = log.read_text(errors="replace").splitlines()
    return next((line for line in lines if "Failed to activate" in line), "was not refused")


def tell(out: Path) -> None:
    """Say what happened in each round, and what came out."""
    for event in Watch(out, 0).events():
        if event["event"] == "joined":
            print(f"client {event['client']} is {event['name']}, tier {event['tier']}")
        elif event["event"] in ("left", "late", "resume", "refused", "readmitted"):
            print(json.dumps(event))
        elif event["event"] in ("round", "repeated"):
            counted = sum(event["trained"].values())
            print(f"{event['event']} {event['round']}: {counted} of {event['tasks']} updates")
            for failure in event["failures"] + event["discarded"]:
                print(f"  client {failure['client']}: {failure['reason'][:150]}")
    summary = json.loads((out / "summary.json").read_text())
    print(f"accuracy of each submodel: {summary['accuracy']}")
    print(f"state_sha256: {summary['state_sha256']}")


if __name__ == "__main__":
    main()
