"""A whole federation on one machine: TLS, node keys, unequal nodes, and everything that goes wrong.

    python examples/flower_loopback.py [--folder FOLDER] [--rounds 6] [--deadline 45] [--calm]

The script makes an app, certificates and keys, starts a SuperLink and seven SuperNodes of different
tiers on loopback, and trains. Five nodes are honest. One lies, another way in each round; one is
frail: it raises, its process dies, it answers too late. A node without a registered key knocks. On
the way one honest node is killed, and then the server itself, which is started again and goes on
from its checkpoint. Every fault costs an update at most; the run ends with a model.

With --calm only the five honest nodes take part and nothing is killed: then the result is, bit for
bit, that of `nefl train` with the same settings.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nefl.config import ClientsConfig, RunConfig
from nefl.engines.flower.programs.app_files import write_app
from nefl.engines.flower.programs.loopback import Loopback

HONEST, TIERS = 5, (1, 2, 3, 4, 5)
LIAR, FRAIL, INTRUDER = "node5", "node6", "intruder"

# The demonstration's client does wrong on purpose; an app of yours has nothing of the kind.
CLIENT = '''\
"""A client that does wrong if its node config tells it to."""

import json
import os
import signal
import time

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
        if number == 1:
            raise RuntimeError("out of memory, say")
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    reply = honest(message, context)
    if role == "frail" and number == 3:
        time.sleep(float(context.node_config["late"]))
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


def settings(rounds: int, deadline: float, clients: int) -> dict[str, Any]:
    """Return the settings of the run; the same for nefl's own engines."""
    return {
        "recipe": "digits",
        "rounds": rounds,
        "clients.count": clients,
        "clients.per_round": clients,
        "clients.capability": "fixed",
        "local.epochs": 1,
        "server.quorum": 0.5,
        "server.norm_limit": 10.0,
        "engine.flower.deadline": deadline,
        "engine.flower.patience": deadline,
        "settings": "server.evaluate_every=1 server.checkpoint_every=1",
    }


def registry(clients: int) -> str:
    """Return the operator's file: which client each node is, its tier, and its limit."""
    lines = ['others = "refuse"']
    for number in range(clients):
        tier = (*TIERS, 2, 3)[number]
        lines += [f"[nodes.node{number}]", f"client = {number}", f"tier = {tier}"]
        lines += [f"largest = {tier}"]
    return "\n".join(lines) + "\n"


class Watch:
    """Looks into the run's log, where everything that happens is written."""

    def __init__(self, out: Path, limit: float) -> None:
        self._out = out
        self._deadline = time.monotonic() + limit

    def rounds(self) -> int:
        """Return how many rounds are done."""
        return sum(event["event"] == "round" for event in self.events())

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield what is in the log."""
        path = self._out / "metrics.jsonl"
        for line in path.read_text().splitlines() if path.exists() else []:
            yield json.loads(line)

    def wait_for_round(self, number: int, loopback: Loopback, run: str) -> None:
        """Wait until a round is done."""
        while self.rounds() < number:
            if time.monotonic() > self._deadline:
                raise SystemExit(f"round {number} takes too long; see {loopback.log(run)}")
            time.sleep(0.5)

    def wait_for_end(self, loopback: Loopback, run: str) -> None:
        """Wait until the run is over."""
        loopback.wait(run, max(1.0, self._deadline - time.monotonic()))


def main() -> None:
    """Run the federation, then say what happened in it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--deadline", type=float, default=45.0)
    parser.add_argument("--limit", type=float, default=900.0)
    parser.add_argument("--calm", action="store_true")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and end what was started
    with folder_for(given.folder) as folder:
        out = federate(folder, given.rounds, given.deadline, given.limit, calm=given.calm)
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


def federate(folder: Path, rounds: int, deadline: float, limit: float, *, calm: bool) -> Path:
    """Start everything, let it train, break what is to be broken; return the run's folder."""
    out = folder / "run"
    clients = HONEST if calm else HONEST + 2
    app = folder / "nested"
    config = RunConfig(clients=ClientsConfig(count=clients, per_round=clients))
    write_app(app, "digits", config)
    (app / "nested" / "client_app.py").write_text(CLIENT)
    (folder / "nodes.toml").write_text(registry(clients))
    wanted = settings(rounds, deadline, clients)
    wanted |= {"out": str(out), "engine.flower.registry": str(folder / "nodes.toml")}
    with Loopback(folder / "flower", secure=True) as loopback:
        loopback.start_server()
        for number in range(clients):
            node: dict[str, Any] = {"partition-id": number, "num-partitions": clients}
            node |= {"role": {5: "liar", 6: "frail"}.get(number, "honest"), "late": deadline + 15}
            loopback.register(f"node{number}")
            loopback.start_node(f"node{number}", node)
        if not calm:
            loopback.start_node(INTRUDER, {"partition-id": 0, "num-partitions": clients})
        watch = Watch(out, limit)
        loopback.run(app, wanted)
        if not calm:
            break_things(loopback, watch, app, wanted)
        watch.wait_for_end(loopback, "again" if not calm else "run")
        if not calm:
            print(f"the intruder: {refusal(loopback.log(INTRUDER))}")
    return out


def break_things(loopback: Loopback, watch: Watch, app: Path, wanted: dict[str, Any]) -> None:
    """Kill a node in the third round and the server in the fourth; start the server again."""
    watch.wait_for_round(2, loopback, "run")
    loopback.end("node4", kill=True)
    print("killed node4, the strongest, in round 3")
    watch.wait_for_round(3, loopback, "run")
    loopback.end("superlink", kill=True)
    loopback.end("run", kill=True)
    print("killed the server in round 4")
    loopback.start_server()
    loopback.run(app, {**wanted, "resume": True}, name="again")
    print("started it again")


def refusal(log: Path) -> str:
    """Return the line in which a node says that the SuperLink did not let it in."""
    lines = log.read_text(errors="replace").splitlines()
    return next((line for line in lines if "Failed to activate" in line), "was not refused")


def tell(out: Path) -> None:
    """Say what happened in each round, and what came out."""
    for event in Watch(out, 0).events():
        if event["event"] == "joined":
            print(f"client {event['client']} is {event['name']}, tier {event['tier']}")
        elif event["event"] in ("left", "late", "resume", "refused"):
            print(json.dumps(event))
        elif event["event"] in ("round", "repeated"):
            counted = sum(event["trained"].values())
            print(f"{event['event']} {event['round']}: {counted} of {event['tasks']} updates")
            for failure in event["failures"]:
                print(f"  client {failure['client']}: {failure['reason'][:150]}")
    summary = json.loads((out / "summary.json").read_text())
    print(f"accuracy of each submodel: {summary['accuracy']}")
    print(f"state_sha256: {summary['state_sha256']}")


if __name__ == "__main__":
    main()
