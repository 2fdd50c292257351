"""Who is which client, and what each may train."""

from pathlib import Path
from typing import Any, cast

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from nefl.config import RunConfig
from nefl.config_reading import config_from
from nefl.engines.flower.capability import (
    Capability,
    capability_content,
    free_memory,
    largest_in_memory,
    own_capability,
    time_submodels,
)
from nefl.engines.flower.mailbox import Grid, Mailbox
from nefl.engines.flower.registry import NodeEntry, Registry, read_registry
from nefl.engines.flower.roster import NodeRoster, Terms, work_out_standing
from nefl.errors import ConfigError, RunError, UpdateError
from nefl.methods import make_family
from nefl.nesting.profile import profile_family
from nefl.server.cohort import CohortPlan, Standing, assign_submodels, sample_cohort

from .conftest import LocalGrid

FAMILY = make_family("resnet8", "nefl-wd", input_shape=(1, 8, 8))
PROFILES = profile_family(FAMILY, (1, 8, 8), 32)


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
        return Message(content, reply_to=message)

    return made


def roster(
    nodes: dict[int, dict[str, Any]], registry: Registry | None = None, **flower: Any
) -> tuple[NodeRoster, LocalGrid, list[dict[str, Any]]]:
    grid = LocalGrid(app(), nodes)
    notes: list[dict[str, Any]] = []

    def note(event: str, **content: object) -> None:
        notes.append({"event": event, **content})

    terms = Terms(config(**flower), 5, PROFILES, [100] * 4)
    return NodeRoster(Mailbox(cast("Grid", grid)), registry or Registry(), terms, note), grid, notes


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
    with pytest.raises(UpdateError, match="no submodel fits"):
        standing(NodeEntry(memory=10.0), Capability())


def test_what_a_node_knows_of_itself() -> None:
    found = own_capability({"partition-id": 3, "tier": True, "memory": 1e6})
    assert (found.client, found.tier, found.memory) == (3, None, 1_000_000)
    assert (free_memory({}) or 1) > 0
    assert largest_in_memory(100, [10, 80, 200]) == 2
    assert largest_in_memory(5, [10]) == 0
    timed = time_submodels(FAMILY, (1, 8, 8), 10, 4)
    assert 1 <= len(timed) <= 5
    assert min(timed) > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
        read_registry(str(path), 4, 5)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_registry(str(tmp_path / "none.toml"), 4, 5)
