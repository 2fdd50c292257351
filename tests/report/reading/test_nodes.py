"""Nodes as a run's log tells of them."""

from typing import Any

from nefl.report.reading.nodes import nodes_of

JOINED = {
    "event": "joined", "node": "71", "name": "kitchen", "client": 0, "tier": 2, "largest": 3,
    "versions": {"nefl": "0.1.0"},
}  # fmt: skip


def round_of(number: int, clients: dict[str, list[int]], *failed: int) -> dict[str, Any]:
    failures = [{"client": c, "submodel": 1, "reason": f"client {c}: no reply"} for c in failed]
    return {"event": "round", "round": number, "clients": clients, "failures": failures}


def test_who_is_there_who_was_heard_and_who_was_refused() -> None:
    other = {"event": "joined", "node": "72", "name": "", "client": 4, "tier": None, "largest": 1}
    refused = {"event": "refused", "node": "73", "name": "attic", "reason": "another version"}
    log: list[dict[str, Any]] = [
        {"event": "start", "round": 0},
        {**JOINED, "time": "t1"},
        {**other, "time": "t2"},
        {**refused, "time": "t3"},
        round_of(1, {"1": [4], "3": [0]}),
        round_of(2, {"3": [0]}, 4),
        {"event": "left", "client": 4, "node": "72", "time": "t4"},
    ]
    kitchen, gone, attic = nodes_of(log)
    assert (kitchen.name, kitchen.client, kitchen.tier, kitchen.largest) == ("kitchen", 0, 2, 3)
    assert (kitchen.version, gone.version) == ("0.1.0", "")
    assert (kitchen.state, kitchen.heard, kitchen.counted, kitchen.failures) == ("there", 2, 2, 0)
    assert (gone.name, gone.state, gone.since) == ("72", "gone", "t4")
    assert (gone.heard, gone.failures, gone.why) == (1, 1, "client 4: no reply")
    assert (attic.client, attic.state, attic.why) == (None, "refused", "another version")


def test_one_that_was_mended_is_no_longer_refused() -> None:
    refused = {"event": "refused", "node": "71", "name": "kitchen", "reason": "no such file"}
    [node] = nodes_of([refused, JOINED])
    assert (node.state, node.client) == ("there", 0)
    [node] = nodes_of([{**refused, "node": "70"}, JOINED])  # it has come back as another one
    assert (node.state, node.client) == ("there", 0)
    assert nodes_of([refused, {"event": "resume", "round": 0}]) == []  # it has to come again


def test_rounds_that_a_resumed_run_makes_again_count_once() -> None:
    log = [JOINED, round_of(1, {"3": [0]}), round_of(2, {"3": [0]})]
    again = [*log, {"event": "resume", "round": 1}]
    [node] = nodes_of(again)
    assert (node.state, node.heard, node.counted) == ("gone", 1, 1)
    [node] = nodes_of([*again, JOINED, round_of(2, {}, 0)])
    assert (node.state, node.heard, node.counted, node.failures) == ("there", 1, 1, 1)


def test_strange_lines_are_passed_over() -> None:
    strange: list[dict[str, Any]] = [
        {"event": "joined", "client": "x"},
        {"event": "round", "clients": 3, "failures": 7},
    ]
    assert nodes_of([*strange, {"event": "left", "client": 9}]) == []
