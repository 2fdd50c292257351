"""The wire of a family: sizes by hand, corners of one encoding, differences that add up."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from nefl.config import WireConfig
from nefl.errors import UpdateError
from nefl.nesting.corners import extract
from nefl.nesting.inside import train_within
from nefl.nesting.modules import StepSize
from nefl.nesting.sets import travel_layout
from nefl.nesting.spec import Family, SubmodelSpec
from nefl.state import ClientUpdate, ServerState, TrainTask
from nefl.wire.layouts import submodel_scales, travel_bytes
from nefl.wire.wire import Wire


class Net(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Linear(20, channels)
        self.norm = nn.BatchNorm1d(channels)
        self.step = StepSize()
        self.head = nn.Linear(channels, 3)
        self.twin = nn.Linear(channels, 3)
        self.twin.weight = self.head.weight


def family() -> Family:
    full = SubmodelSpec(((1.0,),))
    return Family(lambda spec: Net(int(8 * spec.stage_width(0))), (replace(full, width=0.5), full))


def state_of(family: Family) -> ServerState:
    """Return a state with values that no format has, tied ones equal."""
    state = family.initial_state(0)
    generator = torch.Generator().manual_seed(5)
    for group in (state.shared, *state.per_submodel):
        for tensor in group.values():
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
    state.shared["twin.weight"].copy_(state.shared["head.weight"])
    return state


def trained(tensors: dict[str, Tensor], number: int = 2) -> ClientUpdate:
    generator = torch.Generator().manual_seed(9)
    moved = {
        name: t + torch.randn(t.shape, generator=generator) / 50 if t.is_floating_point() else t + 1
        for name, t in tensors.items()
    }
    moved["twin.weight"] = moved["head.weight"]
    return ClientUpdate(TrainTask(1, 4, number), moved, 10)


def test_sizes_by_hand() -> None:
    # With c channels: stem 20c and c, norm c and c, two statistics of c and a counter, a step, the
    # head 3c and 3, its twin 3c and 3. In int8 the stem has a scale a row, five others have one.
    for number, c in ((1, 4), (2, 8)):
        parameters, kept = 20 * c + c + 2 * c + 2 * (3 * c + 3), 4 * 2 * c + 8 + 4
        sizes = {
            "float32": 4 * parameters + kept,
            "bfloat16": 2 * parameters + kept,
            "int8": parameters + 4 * (c + 7) + kept,
        }
        found = {form: travel_bytes(family(), number, (), form) for form in sizes}  # type: ignore[arg-type]
        assert found == sizes
    control = sum(4 * i.numel for n, i in family().layout(2).items() if "running" not in n) - 4
    more = travel_bytes(family(), 2, ["control"], "int8") - travel_bytes(family(), 2, (), "int8")
    assert more == control, "sets stay float32"


def test_members_own_tensors_are_made_smaller_too() -> None:
    within = train_within(family(), lambda k: (1,) if k == 2 else ())
    scales = submodel_scales(within, 2)
    assert {name for name in scales if name.startswith("member/")} == {
        "member/1/norm.weight",
        "member/1/norm.bias",
    }
    wire, state = Wire(within, WireConfig("int8", "int8"), 3), state_of(within)
    sent = wire.send(state)
    there = wire.receive(sent.message(2, ()), 2)
    assert there.keys() == travel_layout(within, 2, ()).keys()
    assert torch.equal(
        there["member/1/norm.weight"], sent.received().per_submodel[0]["norm.weight"]
    )
    assert torch.equal(
        there["member/1/norm.running_var"], state.per_submodel[0]["norm.running_var"]
    )


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
def test_a_message_is_the_corner_of_one_encoding(form: str) -> None:
    nested = family()
    wire = Wire(nested, WireConfig(form, "int8"), 3)  # type: ignore[arg-type]
    state = state_of(nested)
    sent = wire.send(state)
    received = sent.received()
    for number in (1, 2):
        message = sent.message(number, ())
        layout = wire.down_layout(number, ())
        assert {n: (tuple(t.shape), t.dtype) for n, t in message.items()} == {
            n: (i.shape, i.dtype) for n, i in layout.items()
        }
        assert sum(t.nbytes for t in message.values()) == travel_bytes(
            nested,
            number,
            (),
            form,  # type: ignore[arg-type]
        )
        there = wire.receive(message, number)
        for name, tensor in extract(received, nested, number).items():
            assert torch.equal(there[name], tensor), name
        for name in ("norm.running_mean", "step.value", "norm.num_batches_tracked"):
            assert torch.equal(there[name], extract(state, nested, number)[name])
        assert torch.equal(there["head.weight"], there["twin.weight"]), "tied"
    changed = not torch.equal(received.shared["stem.weight"], state.shared["stem.weight"])
    assert changed == (form != "float32")
    again = Wire(nested, wire.config, 3).send(state).received()
    assert torch.equal(again.shared["stem.weight"], received.shared["stem.weight"])
    other = Wire(nested, wire.config, 4).send(state).received()
    assert torch.equal(other.shared["stem.weight"], received.shared["stem.weight"]) == (
        form != "int8"
    )


@pytest.mark.parametrize("up", ["float32", "bfloat16", "int8"])
def test_what_a_client_did_is_added_to_the_servers_weights(up: str) -> None:
    nested = family()
    wire = Wire(nested, WireConfig("int8", up), 3)  # type: ignore[arg-type]
    state = state_of(nested)
    began = extract(wire.send(state).received(), nested, 2)
    start = extract(state, nested, 2)
    still = wire.carry(ClientUpdate(TrainTask(1, 4, 2), began, 10), began, state)
    for name, tensor in start.items():
        assert torch.equal(still.trained[name], tensor), "who does nothing changes nothing"
    update = trained(began)
    carried = wire.carry(update, began, state)
    code = 0.0 if up == "float32" else 2**-8 if up == "bfloat16" else 1 / 127
    for name in submodel_scales(nested, 2):
        moved = update.trained[name] - began[name]
        error = (carried.trained[name] - start[name] - moved).abs().max()
        assert error <= code * moved.abs().max() + 1e-6, name
    for name in ("norm.running_mean", "step.value", "norm.num_batches_tracked"):
        assert torch.equal(carried.trained[name], update.trained[name])
    tied = (carried.trained[name] - start[name] for name in ("head.weight", "twin.weight"))
    assert torch.equal(*tied)
    assert carried.trained.keys() == update.trained.keys()


class Twins(nn.Module):
    """Two classifiers of a submodel's own that are one."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Linear(20, channels)
        self.head, self.twin = OwnLinear(channels, 3), OwnLinear(channels, 3)
        self.twin.weight = self.head.weight


class OwnLinear(nn.Linear):
    pass


def test_tied_tensors_of_a_member_within_are_rounded_alike() -> None:
    full = SubmodelSpec(((1.0,),))
    plain = Family(
        lambda spec: Twins(int(8 * spec.stage_width(0))),
        (replace(full, width=0.5), full),
        (OwnLinear,),
    )
    nested = train_within(plain, lambda submodel: tuple(range(1, submodel)))
    state = nested.initial_state(0)
    for own in state.per_submodel:
        own["twin.weight"].copy_(own["head.weight"])
    wire = Wire(nested, WireConfig("float32", "int8"), 3)
    layout = travel_layout(nested, 2, ())
    began = extract(state, nested, 2)
    began |= {f"member/1/{name}": state.per_submodel[0][name] for name in nested.own_names(1)}
    assert began.keys() == layout.keys()
    generator = torch.Generator().manual_seed(9)
    moved = {n: t + torch.randn(t.shape, generator=generator) / 100 for n, t in began.items()}
    for start in ("", "member/1/"):
        moved[f"{start}twin.weight"] = moved[f"{start}head.weight"]
    update = ClientUpdate(TrainTask(1, 4, 2), moved, 10)
    carried = wire.carry(update, began, state).trained
    for start in ("", "member/1/"):
        assert torch.equal(carried[f"{start}twin.weight"], carried[f"{start}head.weight"]), start
        assert not torch.equal(carried[f"{start}head.weight"], moved[f"{start}head.weight"])


def test_float32_both_ways_computes_nothing() -> None:
    nested = family()
    wire, state = Wire(nested, WireConfig(), 3), state_of(nested)
    assert wire.send(state).received() is state
    update = trained(extract(state, nested, 2))
    assert wire.carry(update, extract(state, nested, 2), state) is update


def _without(tensors: dict[str, Tensor]) -> None:
    del tensors["head.bias"]


def _reshaped(tensors: dict[str, Tensor]) -> None:
    tensors["head.bias"] = tensors["head.bias"][:1]


@pytest.mark.parametrize("spoil", [_without, _reshaped])
def test_an_update_that_does_not_fit_is_named(spoil: Callable[[dict[str, Tensor]], None]) -> None:
    nested = family()
    wire = Wire(nested, WireConfig(up="int8"), 3)
    began = extract(state_of(nested), nested, 2)
    update = trained(began)
    spoil(update.trained)  # type: ignore[arg-type]
    with pytest.raises(UpdateError, match="client 4: head.bias"):
        wire.answer(update, began)
