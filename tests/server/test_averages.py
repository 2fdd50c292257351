"""Averages of one's own, by reference: what they are given, and what they must return."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from nefl import Aggregate, ClientUpdate, ServerState, TrainTask, UpdateError, make_family
from nefl.artifacts.checkpoint import state_sha256
from nefl.config import ServerConfig
from nefl.errors import ConfigError, OwnCodeError
from nefl.nesting.corners import extract
from nefl.nesting.spec import Family
from nefl.server.averages import check_average, make_average
from nefl.server.stepping import make_aggregate
from nefl.server.steps import Momentum

FAMILY = make_family("resnet8", "nefl-w", input_shape=(1, 8, 8))
STATE = FAMILY.initial_state(0)


class Same(Aggregate):
    """NeFedAvg under another name."""


class Last:
    """Keeps what the last client brought of a submodel; whole in memory, so that it may."""

    def __init__(self, state: ServerState, family: Family, weighting: str) -> None:
        self.state, self.family = state, family

    def add(self, update: ClientUpdate) -> None:
        if update.examples == 13:
            raise UpdateError(f"client {update.task.client}: thirteen")
        if update.examples == 14:
            raise ValueError("fourteen")

    def finish(self) -> ServerState:
        return self.state


def with_finish(change: Callable[[ServerState], object]) -> type:
    class Changed(Last):
        def finish(self) -> ServerState:
            return change(self.state)  # type: ignore[return-value]

    return Changed


def without(state: ServerState) -> ServerState:
    return replace(state, shared={n: t for n, t in state.shared.items() if n != "fc.bias"})


def doubled(state: ServerState) -> ServerState:
    return replace(state, shared={n: t.double() for n, t in state.shared.items()})


def listed(state: ServerState) -> ServerState:
    return replace(state, shared={n: t.tolist() for n, t in state.shared.items()})  # type: ignore[misc]


Nothing = with_finish(lambda _: None)
Without = with_finish(without)
Doubled = with_finish(doubled)
Listed = with_finish(listed)
Fewer = with_finish(lambda state: replace(state, per_submodel=state.per_submodel[1:]))


def number(state: ServerState, family: Family, weighting: str) -> int:
    return 3


def of_state_alone(state: ServerState) -> None: ...


def update(client: int, submodel: int, examples: int = 1) -> ClientUpdate:
    trained = {n: t + client for n, t in extract(STATE, FAMILY, submodel).items()}
    return ClientUpdate(TrainTask(1, client, submodel), trained, examples)


def own(name: str) -> ServerConfig:
    return ServerConfig(average=f"{__name__}:{name}")


@pytest.mark.parametrize("weighting", ["equal", "examples"])
@pytest.mark.parametrize("step", [None, Momentum()])
def test_an_average_of_ones_own_takes_the_place_of_nefls(
    weighting: str, step: Momentum | None
) -> None:
    found = []
    for name in ("mean", f"{__name__}:Same"):
        server = ServerConfig(average=name, weighting=weighting)  # type: ignore[arg-type]
        total = make_aggregate(STATE, FAMILY, server, step=step)
        for client, submodel in enumerate((1, 3, 3, 5)):
            total.add(update(client, submodel, 1 + client))
        found.append(state_sha256(total.finish()))
    assert found[0] == found[1]


def test_it_sees_sound_updates_only_and_may_refuse_them() -> None:
    total = make_average(STATE, FAMILY, own("Last"))
    total.add(update(0, 1))
    with pytest.raises(UpdateError, match="client 0: has an update in this round already"):
        total.add(update(0, 1))
    bad = update(1, 1)
    with pytest.raises(UpdateError, match="client 1: lacks"):
        total.add(replace(bad, trained={}))
    with pytest.raises(UpdateError, match="client 1: thirteen"):
        total.add(replace(bad, examples=13))
    with pytest.raises(OwnCodeError, match=r"Last \(.*\): add failed: ValueError: fourteen"):
        total.add(replace(bad, examples=14))
    total.add(bad)
    assert total.finish().round_number == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Nothing", "finish returned NoneType, expected a nefl.ServerState"),
        ("Without", "finish returned a state that lacks fc.bias"),
        ("Doubled", "as torch.float64 .*, expected torch.float32"),
        ("Listed", "as list, not as a tensor"),
        ("Fewer", "the own tensors of 4 submodels, there are 5"),
    ],
)
def test_what_it_returns_is_looked_at(name: str, message: str) -> None:
    total = make_average(STATE, FAMILY, own(name))
    with pytest.raises(ConfigError, match=message):
        total.finish()


def test_what_is_no_average_is_refused() -> None:
    with pytest.raises(ConfigError, match="makes int, which has no method add; give it add"):
        make_average(STATE, FAMILY, own("number"))
    with pytest.raises(ConfigError, match=r"takes \(state.*called with state, family, weighting"):
        check_average(own("of_state_alone"), FAMILY)
    with pytest.raises(ConfigError, match="cannot be imported"):
        check_average(own("absent"), FAMILY)
    check_average(own("Same"), FAMILY)
    check_average(ServerConfig(), FAMILY)
    with pytest.raises(ConfigError, match="'midpoint' is unknown; there are: mean, median, tri"):
        ServerConfig(average="midpoint")


def test_voters_belong_to_averages_that_vote() -> None:
    with pytest.raises(ConfigError, match="server.min_holders belongs to"):
        replace(own("Same"), min_holders=2)
