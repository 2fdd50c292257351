"""The nodes of a run as its log tells of them: who is there, who was refused, who was heard."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nefl.artifacts.notes import read_log


@dataclass
class Node:
    """A client that is a node of its own.

    Attributes:
        name: what the operator or its key calls it, or its number at Flower.
        client: its number among the clients; nothing while it was never let in.
        tier: its tier, where it has one.
        largest: the largest submodel that it may be given.
        state: `there`, `gone` or `refused`.
        since: when it came into that state, as the log writes times.
        heard: the last round in which its update counted; 0 if none did.
        counted: how many of its updates counted.
        failures: how many of its tasks brought no update.
        why: the reason of its last failure or refusal.
        version: of nefl there, where it says so.
    """

    name: str
    client: int | None = None
    tier: int | None = None
    largest: int | None = None
    state: str = "there"
    since: str = ""
    heard: int = 0
    counted: int = 0
    failures: int = 0
    why: str = ""
    version: str = ""


def read_nodes(run: Path) -> list[Node]:
    """Return the nodes that a run's log tells of, by client; those never let in come last.

    Raises:
        OSError: if the log cannot be read.
    """
    return nodes_of(read_log(run))


def nodes_of(log: Iterable[Mapping[str, Any]]) -> list[Node]:
    """Return the nodes that the events of a log tell of."""
    clients: dict[int, Node] = {}
    outside: dict[str, Node] = {}
    rounds: list[Mapping[str, Any]] = []
    for event in log:
        kind, client = event.get("event"), event.get("client")
        if kind == "resume":
            # Later rounds are made again, and nodes have to come again.
            rounds = [e for e in rounds if _round(e) <= _round(event)]
            _all_gone(clients, event)
            outside = {}
        elif kind == "joined" and isinstance(client, int):
            known = {str(event.get("node")), _name(event)}
            outside = {n: node for n, node in outside.items() if not {n, node.name} & known}
            _join(clients, client, event)
        elif kind == "left" and client in clients:
            clients[client].state, clients[client].since = "gone", str(event.get("time", ""))
        elif kind == "refused" and "node" in event:
            node = outside.setdefault(str(event["node"]), Node(_name(event), state="refused"))
            node.why, node.since = str(event.get("reason", "")), str(event.get("time", ""))
        elif kind in ("round", "repeated"):
            rounds.append(event)
    for event in rounds:
        _count(clients, event)
    return [clients[c] for c in sorted(clients)] + list(outside.values())


def _round(event: Mapping[str, Any]) -> int:
    number = event.get("round")
    return number if isinstance(number, int) else 0


def _name(event: Mapping[str, Any]) -> str:
    return str(event.get("name") or event.get("node") or "")


def _join(clients: dict[int, Node], client: int, event: Mapping[str, Any]) -> None:
    node = clients.setdefault(client, Node(_name(event), client))
    node.name, node.state, node.since = _name(event), "there", str(event.get("time", ""))
    node.tier, node.largest = event.get("tier"), event.get("largest")
    versions = event.get("versions")
    node.version = str(versions.get("nefl", "")) if isinstance(versions, Mapping) else ""


def _all_gone(clients: Mapping[int, Node], event: Mapping[str, Any]) -> None:
    """Take note that the server has begun anew: nodes have to come again."""
    for node in clients.values():
        if node.state == "there":
            node.state, node.since = "gone", str(event.get("time", ""))


def _count(clients: Mapping[int, Node], event: Mapping[str, Any]) -> None:
    """Count whose updates came in a round, and whose did not."""
    heard = event.get("clients") if event["event"] == "round" else None
    for some in heard.values() if isinstance(heard, Mapping) else ():
        for client in some if isinstance(some, list) else ():
            if client in clients:
                clients[client].heard = _round(event)
                clients[client].counted += 1
    failures = event.get("failures")
    for failure in failures if isinstance(failures, list) else ():
        node = clients.get(failure.get("client", -1)) if isinstance(failure, Mapping) else None
        if node is not None:
            node.failures += 1
            node.why = str(failure.get("reason", ""))
