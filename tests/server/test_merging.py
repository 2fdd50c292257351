"""Sums that are written, sent and merged, against one server that adds every update itself."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nefl
from nefl.artifacts.checkpoint import flatten_state, save_state, state_sha256
from nefl.config import ServerConfig
from nefl.errors import ConfigError, RunError, UpdateError
from nefl.methods import make_family
from nefl.nesting.sets import extract_all
from nefl.server.aggregate import GROUP, Aggregate, Weighting
from nefl.server.stepping import Stepped
from nefl.server.steps import Cell, Momentum, ServerStep
from nefl.state import ClientUpdate, ServerState, Sums, TrainTask

FAMILY = make_family("resnet8", "nefl-wd", input_shape=(1, 8, 8))
STATE = FAMILY.initial_state(0)


def update(client: int, submodel: int, *, whole: bool) -> ClientUpdate:
    """Tensors of small whole numbers, whose sums are exact in any order, or of any numbers."""
    rng = torch.Generator().manual_seed(client)
    trained = {
        name: torch.randint(-9, 10, info.shape, generator=rng).to(info.dtype)
        if whole or not info.dtype.is_floating_point
        else torch.randn(info.shape, generator=rng)
        for name, info in FAMILY.layout(submodel).items()
    }
    return ClientUpdate(TrainTask(1, client, submodel), trained, examples=1 + client % 3)


def added(updates: Sequence[ClientUpdate], weighting: Weighting = "equal") -> Aggregate:
    total = Aggregate(STATE, FAMILY, weighting=weighting)
    for each in updates:
        total.add(each)
    return total


def in_a_tree(leaves: Sequence[Sums], weighting: Weighting = "equal", fan_in: int = 2) -> Sums:
    """Merge neighbours until one is left."""
    level = list(leaves)
    while len(level) > 1:
        groups = [level[start : start + fan_in] for start in range(0, len(level), fan_in)]
        level = [merged(group, weighting).sums() for group in groups]
    return level[0]


def merged(sums: Sequence[Sums], weighting: Weighting = "equal") -> Aggregate:
    total = Aggregate(STATE, FAMILY, weighting=weighting)
    for each in sums:
        total.merge(each)
    return total


@settings(max_examples=15)
@given(
    st.lists(st.lists(st.integers(1, 5), max_size=4), min_size=1, max_size=5),
    st.sampled_from(["equal", "examples"]),
    st.integers(2, 3),
)
def test_any_tree_gives_what_one_server_gives(
    parts: list[list[int]], weighting: Weighting, fan_in: int
) -> None:
    """Bit for bit where sums are exact, with aggregators that nobody reports to among them."""
    clients = iter(range(100))
    groups = [[update(next(clients), k, whole=True) for k in part] for part in parts]
    expected = added([each for group in groups for each in group], weighting).finish()
    leaves = [added(group, weighting).sums() for group in groups]
    found = merged([in_a_tree(leaves, weighting, fan_in)], weighting).finish()
    assert state_sha256(found) == state_sha256(expected)


def test_beyond_a_group_and_beside_updates_of_ones_own(tmp_path: Path) -> None:
    """Close to one server where sums round, and the same bits whenever it is done again."""
    updates = [update(c, 1 + c % 5, whole=False) for c in range(3 * GROUP + 5)]
    expected = flatten_state(added(updates).finish())

    def tree() -> ServerState:
        total = added(updates[:3])
        for number, part in enumerate((updates[3 : GROUP + 9], updates[GROUP + 9 :])):
            path = tmp_path / f"{number}.safetensors"
            nefl.save_sums(path, added(part).sums(), FAMILY)
            total.merge(nefl.load_sums(path, FAMILY))
        return total.finish()

    first, again = tree(), tree()
    assert state_sha256(first) == state_sha256(again)
    for name, tensor in flatten_state(first).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)


def _spoilt(sums: Sums) -> dict[str, tuple[Sums, str]]:
    name = next(iter(sums.shared))
    nan = {**sums.shared, name: torch.full_like(sums.shared[name], torch.nan)}
    less = {n: t for n, t in sums.shared.items() if n != name}
    small = {**sums.shared, name: sums.shared[name][:1]}
    half = {**sums.shared, name: sums.shared[name].half()}
    none = (0,) * 5
    unheld = replace(sums, weights=none, own_weights=none, clients=none, own_clients=none)
    return {
        "round": (replace(sums, round_number=7), "sums of round 7"),
        "weighting": (replace(sums, weighting="examples"), "weighted by 'examples'"),
        "negative": (replace(sums, weights=(-1, 0, 0, 0, 1)), "5 whole numbers of 0 or more"),
        "few": (replace(sums, weights=(1,)), "5 whole numbers of 0 or more"),
        "unheld": (unheld, "has unexpected"),
        "owned": (replace(sums, own_weights=none), "own_weights of submodel 5 are 0"),
        "other": (replace(sums, own_weights=(1, 0, 0, 0, 1)), "own_weights of submodel 1 are 1"),
        "heads": (replace(sums, clients=(0, 0, 0, 0, 2)), "cannot have gathered weights"),
        "nobody": (replace(sums, own_clients=none), "cannot have gathered own_weights"),
        "nan": (replace(sums, shared=nan), f"shared {name} has values that are not finite"),
        "names": (replace(sums, shared=less), f"lacks {name}"),
        "shape": (replace(sums, shared=small), f"{name} has shape"),
        "dtype": (replace(sums, shared=half), f"{name} has dtype torch.float16, not torch.float32"),
        "missing": (replace(sums, own=()), "own sums are missing"),
    }


@pytest.mark.parametrize("fault", _spoilt(added([update(0, 5, whole=True)]).sums()))
def test_wrong_sums_are_refused_and_change_nothing(fault: str) -> None:
    sums = added([update(0, 5, whole=True)]).sums()
    wrong, reason = _spoilt(sums)[fault]
    total = added([update(1, 2, whole=True)])
    with pytest.raises(UpdateError, match=reason):
        total.merge(wrong)
    alone = added([update(1, 2, whole=True)])
    assert state_sha256(total.finish()) == state_sha256(alone.finish())


class Heads(ServerStep):
    """Goes as far as clients took part, in all rounds, so that a wrong number shows."""

    keeps = ("seen",)

    def step(self, cell: Cell) -> torch.Tensor:
        cell.memory["seen"] = cell.memory["seen"] + cell.clients
        return cell.mean + cell.memory["seen"]


@pytest.mark.parametrize("weighting", ["equal", "examples"])
@pytest.mark.parametrize("step", [Momentum(), Heads()])
def test_a_step_goes_on_from_merged_sums(step: ServerStep, weighting: Weighting) -> None:
    updates = [update(client, 1 + client % 4, whole=True) for client in range(7)]
    server = ServerConfig(weighting=weighting)
    one, many = (Stepped(STATE, FAMILY, server, step) for _ in range(2))
    for each in updates:
        one.add(each)
    many.add(updates[0])
    many.merge(in_a_tree([added(updates[1:3], weighting).sums()], weighting))
    many.merge(added(updates[3:], weighting).sums())
    expected, found = flatten_state(one.finish()), flatten_state(many.finish())
    assert any(name.startswith("memory/") for name in expected)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_sums_that_lack_what_a_step_needs_are_refused() -> None:
    sums = added([update(0, 3, whole=True)]).sums()
    median = Stepped(STATE, FAMILY, ServerConfig(average="median"), Momentum())
    with pytest.raises(ConfigError, match="'median' needs every update"):
        median.merge(sums)
    with pytest.raises(ConfigError, match="clients send control beside"):
        Stepped(STATE, FAMILY, ServerConfig(), ServerStep(), sends=["control"]).merge(sums)


def test_members_that_were_not_trained_within_are_missing_in_honest_sums() -> None:
    """A client's own submodel too, where another was drawn in all its steps."""
    family = make_family("resnet8", "fjord-od", input_shape=(1, 8, 8))
    state = family.initial_state(0)

    def trained(client: int) -> ClientUpdate:
        tensors = extract_all(state, family, 5, ())
        moved = {n: t + client if n in state.shared else t for n, t in tensors.items()}
        return ClientUpdate(TrainTask(1, client, 5), moved, examples=1)

    one, near, far = (Aggregate(state, family) for _ in range(3))
    for client in (1, 2):
        one.add(trained(client))
        near.add(trained(client))
    sums = near.sums()
    assert sums.own_weights[4] < sums.weights[4]
    far.merge(sums)
    assert state_sha256(far.finish()) == state_sha256(one.finish())


def test_files_are_whole_and_of_the_family(tmp_path: Path) -> None:
    path = tmp_path / "part.safetensors"
    nefl.save_sums(path, added([update(0, 3, whole=True)]).sums(), FAMILY)
    with pytest.raises(RunError, match="sums of another family"):
        nefl.load_sums(path, make_family("resnet8", "nefl-w"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RunError, match="is damaged"):
        nefl.load_sums(path, FAMILY)
    path.write_bytes(whole.replace(b"[0, 0, 1, 0, 0]", b"[0, 0, 9, 0, 0]"))
    with pytest.raises(RunError, match="is damaged"):
        nefl.load_sums(path, FAMILY)
    other = tmp_path / "state.safetensors"
    save_state(other, STATE)
    with pytest.raises(RunError, match="holds no sums of nefl"):
        nefl.load_sums(other, FAMILY)
