"""Who is which client, and what each may train."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from nefl.config import RunConfig
from nefl.config.reading import config_from
from nefl.engines.flower.capability import (
    Capability,
    capability_content,
    free_memory,
    largest_in_memory,
    own_capability,
)
from nefl.engines.flower.messages import Order
from nefl.engines.flower.node.answering import smaller_if_short_of_memory
from nefl.engines.flower.server.mailbox import Grid, Mailbox
from nefl.engines.flower.server.refusals import LONGEST_PAUSE, Refusals
from nefl.engines.flower.server.registry import NodeEntry, Registry, RegistryFile
from nefl.engines.flower.server.roster import NodeRoster
from nefl.engines.flower.server.standing import Terms, work_out_standing
from nefl.engines.machine import time_submodels
from nefl.errors import ConfigError, RunError, UpdateError
from nefl.methods import make_family
from nefl.nesting.profile import profile_family
from nefl.nesting.signature import Signature
from nefl.server.cohort import CohortPlan, Standing, assign_submodels, sample_cohort
from nefl.state import TrainTask

from .conftest import LocalGrid

FAMILY = make_family("resnet8", "nefl-wd", input_shape=(1, 8, 8))
PROFILES = profile_family(FAMILY, Signature((1, 8, 8), 10), 32)


def config(**flower: Any) -> RunConfig:
    return config_from(
        {
            "clients": {"count": 4, "per_round": 4},
            "engine": {"flower": {"patience": 0.01, **flower}},
        }
    )


def app() -> ClientApp:
    """Answers what its node config says; `silent` nodes answer nonsense."""
    made = ClientApp()

    @made.query("capability")
    def _capability(message: Message, context: Context) -> Message:
        content = capability_content(own_capability(context.node_config))
        if context.node_config.get("silent"):
            content = RecordDict()
        if "version" in context.node_config:
            known = own_capability(context.node_config)
            versions = {"nefl": str(context.node_config["version"])}
            content = capability_content(replace(known, versions=versions))
        return Message(content, reply_to=message)

    return made


def roster(
    nodes: dict[int, dict[str, Any]],
    registry: Registry | Callable[[], Registry] | None = None,
    **flower: Any,
) -> tuple[NodeRoster, LocalGrid, list[dict[str, Any]]]:
    grid = LocalGrid(app(), nodes)
    notes: list[dict[str, Any]] = []

    def note(event: str, **content: object) -> None:
        notes.append({"event": event, **content})

    terms = Terms(config(**flower), 5, PROFILES, [100] * 4)
    said = registry if callable(registry) else lambda: registry or Registry()
    return NodeRoster(Mailbox(cast("Grid", grid)), said, terms, note), grid, notes


def test_nodes_are_the_clients_they_say() -> None:
    found, _, _ = roster({70: {"partition-id": 2}, 30: {"partition-id": 0}, 50: {}, 60: {}})
    assert found.present() == [0, 1, 2, 3]
    assert (found.node(2), found.node(0)) == (70, 30)
    assert {found.node(1), found.node(3)} == {50, 60}


def test_a_node_that_claims_anothers_number_is_turned_away() -> None:
    nodes = {1: {"partition-id": 0}, 2: {"partition-id": 0}, 3: {"partition-id": 9}}
    found, _, notes = roster({**nodes, 4: {"silent": True}, 5: {"partition-id": 3}})
    for _ in range(3):
        assert found.present() == [0, 3]
    reasons = {e["node"]: e["reason"] for e in notes if e["event"] == "refused"}
    assert "that is another node" in reasons["2"]
    assert "client 9, expected 0 to 3" in reasons["3"]
    assert "does not answer" in reasons["4"]


def test_a_node_of_another_version_is_refused_unless_the_last_number_alone_differs() -> None:
    line = ".".join(version("nefl").split(".")[:2])
    nodes = {1: {"version": f"{line}.99"}, 2: {"version": "7.0.0"}, 3: {"version": ""}, 4: {}}
    found, _, notes = roster(nodes)
    assert found.present() == [0, 1, 2]
    [refused] = [event for event in notes if event["event"] == "refused"]
    assert refused["node"] == "2"
    assert refused["reason"].startswith(f"has nefl 7.0.0, and the server {version('nefl')}")
    joined = {e["node"]: e["versions"] for e in notes if e["event"] == "joined"}
    assert joined["1"] == {"nefl": f"{line}.99"}
    assert joined["4"]["torch"] == torch.__version__


def test_a_named_nodes_number_stays_its_own() -> None:
    """A squatter cannot take the place of a registered node that is away."""
    found, grid, _ = roster({1: {"partition-id": 0}, 2: {"partition-id": 1}, 9: {}})
    grid.names = {1: "edge-a", 2: "edge-b", 9: "edge-c"}
    found.present()
    del grid.nodes[1]
    grid.nodes[3] = {"partition-id": 0}
    grid.names[3] = "thief"
    found.present()
    assert found.node(0) is None
    del grid.nodes[3]
    grid.nodes[7] = {"partition-id": 0}  # the same key reconnects under another number
    grid.names[7] = "edge-a"
    found.present()
    assert found.node(0) == 7


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nefl.engines.flower.server.refusals.FIRST_PAUSE", 0.0)


@pytest.mark.usefixtures("_no_pauses")
def test_a_node_that_was_mended_is_let_in() -> None:
    """Its reason is noted once, however often it is asked, and that it was let in after all."""
    good = {1: {"partition-id": 0}, 4: {"partition-id": 1}}
    found, grid, notes = roster({**good, 2: {"partition-id": 9}, 3: {"silent": 1}})
    for _ in range(4):
        assert found.present() == [0, 1]
    assert sorted(e["node"] for e in notes if e["event"] == "refused") == ["2", "3"]
    grid.nodes[2] = {"partition-id": 2}
    grid.nodes[3] = {"partition-id": 3}
    assert found.present() == [0, 1, 2, 3]
    again = {e["node"]: e for e in notes if e["event"] == "readmitted"}
    assert (again["2"]["client"], again["3"]["client"]) == (2, 3)
    assert "client 9, expected 0 to 3" in again["2"]["reason"]
    assert again["2"]["refused"] >= 4


def test_pauses_grow_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    refusals, pauses = Refusals(), []
    assert refusals.due(7)
    for attempt in range(40):
        assert refusals.add(7, "broken") is (attempt == 0)
        begun = now
        assert not refusals.due(7)
        while not refusals.due(7):
            now += 1.0
        pauses.append(now - begun)
    assert pauses[:4] == [2, 4, 8, 16]
    assert pauses[-1] == LONGEST_PAUSE
    assert refusals.add(7, "broken otherwise")
    refusals.keep({8: ""})
    assert refusals.due(7)
    assert refusals.lift(7) is None


@pytest.mark.usefixtures("_no_pauses")
def test_a_node_that_returns_before_its_old_number_is_gone() -> None:
    """One with a name at once: nobody else can bear it. One without when the old one has gone."""
    registry = Registry(nodes={"edge-b": NodeEntry(client=1, tier=2)})
    found, grid, notes = roster({1: {"partition-id": 0}, 2: {}, 3: {"partition-id": 2}}, registry)
    grid.names = {1: "edge-a", 2: "edge-b"}
    assert found.present() == [0, 1, 2]
    grid.nodes |= {11: {"partition-id": 0}, 12: {}, 13: {"partition-id": 2}}
    grid.names |= {11: "edge-a", 12: "edge-b"}
    for _ in range(3):
        assert found.present() == [0, 1, 2]
        assert [found.node(client) for client in range(3)] == [11, 12, 3]
    assert [e["node"] for e in notes if e["event"] == "left"] == ["2", "1"]
    assert [e["node"] for e in notes if e["event"] == "refused"] == ["13"]
    for old in (1, 2, 3):
        del grid.nodes[old]
    found.present()
    assert [found.node(client) for client in range(3)] == [11, 12, 13]


@pytest.mark.usefixtures("_no_pauses")
def test_the_operator_may_mend_the_registry_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "nodes.toml"
    noted: list[str] = []

    def write(text: str) -> None:
        path.write_text(text)
        os.utime(path, ns=(0, len(noted) + len(text)))  # clocks may be too coarse to tell

    write('others = "refuse"\n[nodes.a]\n[nodes.c]\n')
    file = RegistryFile(str(path), 4, 5, note=lambda _, reason: noted.append(reason))
    found, grid, _ = roster({1: {}, 2: {}, 3: {}}, file)
    grid.names = {1: "a", 2: "b", 3: "c"}
    assert found.present() == [0, 1]
    write("others = nobody")
    assert found.present() == [0, 1]
    assert "is not valid TOML" in noted[0]
    write('others = "refuse"\n[nodes.a]\n[nodes.c]\n[nodes.b]\nclient = 3\n')
    assert found.present() == [0, 1, 3]
    assert len(noted) == 2


@pytest.mark.usefixtures("_no_pauses")
def test_who_loses_a_number_to_a_registered_node_gets_another(tmp_path: Path) -> None:
    path = tmp_path / "nodes.toml"
    path.write_text("")
    file = RegistryFile(str(path), 4, 5, note=lambda *_, **__: None)
    found, grid, _ = roster({1: {}, 3: {}}, file)
    grid.names = {1: "a", 3: "c"}
    assert found.present() == [0, 1]
    path.write_text("[nodes.b]\nclient = 0\n")
    grid.nodes[2], grid.names[2] = {}, "b"
    found.present()
    assert found.present() == [0, 1, 2]
    assert [found.node(client) for client in range(3)] == [2, 3, 1]


def test_a_query_without_an_answer_is_a_refusal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found, grid, notes = roster({1: {"partition-id": 0}, 2: {"partition-id": 1}}, deadline=50.0)
    silent = [True]

    def pull(numbers: Iterable[str]) -> list[Message]:
        kept = [n for n in numbers if grid.sent[int(n)].metadata.dst_node_id == 1 or not silent[0]]
        return LocalGrid.pull_messages(grid, kept)

    monkeypatch.setattr(grid, "pull_messages", pull)
    with pytest.raises(RunError, match="1 clients"):
        found.present()
    clock, ahead = time.monotonic, [60.0]
    monkeypatch.setattr("time.monotonic", lambda: clock() + ahead[0])
    silent[0] = False
    with pytest.raises(RunError, match="1 clients"):
        found.present()
    assert "did not answer the query in 50 s" in notes[-1]["reason"]
    ahead[0] += 3
    assert found.present() == [0, 1]


def test_the_registry_decides() -> None:
    registry = Registry(
        others="refuse",
        nodes={"a": NodeEntry(client=3, tier=1, largest=2), "b": NodeEntry(largest=3)},
    )
    found, grid, notes = roster(
        {1: {"partition-id": 0, "tier": 5}, 2: {"tier": 5}, 3: {}}, registry
    )
    grid.names = {1: "a", 2: "b"}
    assert found.present() == [0, 3]
    assert found.standing(3) == Standing(1, 2)
    assert found.standing(0) == Standing(3, 3)  # it says tier 5, and may have 3
    assert len(grid.sent) == 1  # of `a` nothing is left to ask
    assert [e["node"] for e in notes if e["event"] == "refused"] == ["3"]


def test_cohorts_are_of_those_who_are_there_and_within_their_limits() -> None:
    registry = Registry(nodes={"a": NodeEntry(tier=5, largest=2)})
    found, grid, _ = roster({1: {"partition-id": 1}, 2: {"partition-id": 3}}, registry)
    grid.names = {1: "a", 2: "b"}
    plan = CohortPlan(config().clients, 5, 0, roster=found)
    assert sample_cohort(plan, 1) == [1, 3]
    for round_number in range(1, 20):
        tasks = {t.client: t for t in assign_submodels([1, 3], plan, round_number)}
        assert tasks[1].submodel <= 2
        assert tasks[3].submodel >= 2


def test_a_full_roster_draws_the_cohorts_of_a_local_run() -> None:
    found, _, _ = roster({10 - c: {"partition-id": c} for c in range(4)})
    clients = config_from({"clients": {"count": 4, "per_round": 2}}).clients
    local, real = CohortPlan(clients, 5, 7), CohortPlan(clients, 5, 7, roster=found)
    for number in range(1, 10):
        assert sample_cohort(local, number) == sample_cohort(real, number)
        cohort = sample_cohort(local, number)
        assert assign_submodels(cohort, local, number) == assign_submodels(cohort, real, number)


def test_nobody_comes() -> None:
    found, _, _ = roster({})
    with pytest.raises(RunError, match="0 clients are there, a round needs 2"):
        found.present()


def standing(entry: NodeEntry, capability: Capability, **flower: Any) -> Standing:
    terms = Terms(config(**flower), 5, PROFILES, [100] * 4)
    return work_out_standing(0, entry, capability, terms)


def test_device_profiles() -> None:
    needs = [p.train_memory_bytes for p in PROFILES]
    by_memory = standing(NodeEntry(memory=needs[2] * 1.3), Capability())
    assert by_memory == Standing(3, 3)
    macs = 3 * PROFILES[1].macs_total * 100 * 5
    fast = NodeEntry(macs_per_second=macs / 9)
    assert standing(fast, Capability(), deadline=10.0) == Standing(2, 2)
    measured = Capability(memory=10**9, step_seconds=(0.1, 0.2, 0.4, 9.0))
    assert standing(NodeEntry(), measured, measure=True, deadline=10.0) == Standing(3, 3)
    assert standing(NodeEntry(largest=2), measured, measure=True, deadline=10.0) == Standing(2, 2)
    assert standing(NodeEntry(), measured) == Standing(None, 5)  # it was not asked to measure
    # With members within a step takes as much longer as it has more work.
    more = [replace(p, train_macs=3 * p.train_macs) for p in PROFILES]
    within = Terms(config(measure=True, deadline=10.0), 5, more, [100] * 4, alone=PROFILES)
    assert work_out_standing(0, NodeEntry(), measured, within) == Standing(1, 1)
    alone = Terms(config(), 1, PROFILES[-1:], [100] * 4, left_out=4)
    for tier in (2, 5, 9):
        found = work_out_standing(0, NodeEntry(), Capability(tier=tier), alone)
        assert found == Standing(min(tier, 5), 1)
    strong = work_out_standing(0, NodeEntry(memory=needs[4] * 1.3), Capability(), alone)
    assert strong == Standing(5, 1)
    with pytest.raises(UpdateError, match="no submodel fits"):
        standing(NodeEntry(memory=10.0), Capability())


def test_what_a_node_knows_of_itself() -> None:
    found = own_capability({"partition-id": 3, "tier": True, "memory": 1e6})
    assert (found.client, found.tier, found.memory) == (3, None, 1_000_000)
    assert (free_memory({}) or 1) > 0
    assert largest_in_memory(100, [10, 80, 200]) == 2
    assert largest_in_memory(5, [10]) == 0
    timed = time_submodels(FAMILY, Signature((1, 8, 8), 10), 4, torch.device("cpu"))
    assert 1 <= len(timed) <= 5
    assert min(timed) > 0


def test_a_node_that_trains_on_cuda_goes_by_that_devices_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one place that asks torch is faked: there may be no such device here."""
    asked: list[torch.device] = []

    def free(device: torch.device) -> int:
        if device.type == "cpu":
            return 10**9
        asked.append(device)
        return 7000

    monkeypatch.setattr("nefl.engines.flower.capability.free_bytes", free)
    cuda = torch.device("cuda", 1)
    assert own_capability({}, cuda).memory == 7000
    assert free_memory({"memory": 5000}, cuda) == 5000
    assert free_memory({"memory": 9000}, cuda) == 7000
    assert asked == [cuda] * 3
    assert (free_memory({}, torch.device("cpu")) or 0) > 7000
    assert asked == [cuda] * 3
    order = Order(TrainTask(1, 0, 3), "", "server", 3, (4000, 5000, 9000), {})
    monkeypatch.setattr("nefl.engines.flower.capability.pick_device", torch.device)
    cases: list[tuple[dict[str, Any], dict[str, Any], int]] = [
        ({"device": "cuda:1"}, {}, 2),
        ({}, {"config": {"engine": {"devices": ["cuda"]}}}, 2),
        ({"device": "cpu"}, {"config": {"engine": {"devices": ["cuda"]}}}, 3),
        ({}, {}, 3),
    ]
    for node, run, taken in cases:
        context = Context(1, 1, node, RecordDict(), {})
        assert smaller_if_short_of_memory(replace(order, run=run), context) == taken


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[nodes."../x"]\ntier = 1\n', "a node's name has 1 to 64 letters"),
        ("[nodes.a]\ntier = 9\n", "a: tier is 9, expected 1 to 5"),
        ("[nodes.a]\nclient = 1\n[nodes.b]\nclient = 1\n", "client 1 is both a and b"),
        ("[nodes.a]\ncolour = 1\n", "nodes.a.colour"),
        ("[default]\nclient = 1\n", "a number is one node's"),
        ("[nodes.a]\nmemory = -1\n", "a: memory is -1"),
        ("others = 3\n", "others is 3"),
        ("[", "is not valid TOML"),
    ],
)
def test_registries_that_cannot_be(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "nodes.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        RegistryFile(str(path), 4, 5)
    with pytest.raises(ConfigError, match="cannot be read"):
        RegistryFile(str(tmp_path / "none.toml"), 4, 5)
