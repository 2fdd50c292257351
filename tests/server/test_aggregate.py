"""NeFedAvg by hand, against brute force, and against everything a client may send."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nefl.config import ServerConfig
from nefl.errors import UpdateError
from nefl.methods import make_family
from nefl.nesting.corners import corner, extract
from nefl.nesting.modules import BatchNorm, StepSize
from nefl.nesting.spec import Family, SubmodelSpec
from nefl.server.aggregate import GROUP, Aggregate
from nefl.server.check import SMALL, first_not_finite
from nefl.server.stepping import make_aggregate
from nefl.state import ClientUpdate, ServerState, Tensors, TrainTask

# A spec's width chooses a row of this table: shapes by name; a missing name is a skipped block.
Shapes = dict[str, tuple[int, ...]]


class Bag(nn.Module):
    """A module that is nothing but tensors of given shapes."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape))


class BagBuilder:
    def __init__(self, rows: Sequence[Shapes]) -> None:
        self.rows = rows

    def __call__(self, spec: SubmodelSpec) -> nn.Module:
        return Bag(self.rows[round(spec.stage_width(0) * len(self.rows)) - 1])


def bag_family(rows: Sequence[Shapes]) -> Family:
    specs = tuple(SubmodelSpec(((1.0,),), (i + 1) / len(rows)) for i in range(len(rows)))
    return Family(BagBuilder(rows), specs)


def state_of(family: Family, value: float = 0.0) -> ServerState:
    shared = {n: torch.full(i.shape, float(value)) for n, i in family.global_layout.items()}
    return ServerState(0, shared, tuple({} for _ in family.specs))


def filled(family: Family, client: int, submodel: int, value: float, n: int = 1) -> ClientUpdate:
    trained = {
        name: torch.full(info.shape, value, dtype=info.dtype)
        for name, info in family.layout(submodel).items()
    }
    return ClientUpdate(TrainTask(1, client, submodel), trained, n)


def averaged(family: Family, state: ServerState, updates: Sequence[ClientUpdate]) -> Tensors:
    total = Aggregate(state, family)
    for update in updates:
        total.add(update)
    return total.finish().shared


def test_by_hand_on_a_3x3_tensor() -> None:
    family = bag_family([{"w": (2, 2)}, {"w": (3, 3)}])
    state = state_of(family, 9)
    got = averaged(family, state, [filled(family, 0, 1, 1), filled(family, 1, 2, 4)])["w"]
    assert got.tolist() == [[2.5, 2.5, 4], [2.5, 2.5, 4], [4, 4, 4]]
    only_small = averaged(family, state, [filled(family, 0, 1, 1)])["w"]
    assert only_small.tolist() == [[1, 1, 9], [1, 1, 9], [9, 9, 9]]


def test_the_papers_worked_example() -> None:
    """Blocks in submodels 1, 3, 5, trained by 2, 3, 2 clients: means over 7, 5 and 2 of them."""
    rows: list[Shapes] = [{"b": (1,), "c": (1,)}, {"c": (2,)}, {"b": (2,), "c": (3,)}]
    rows += [{"c": (5,)}, {"b": (3,), "c": (6,)}]
    family = bag_family(rows)
    submodels = [1, 1, 3, 3, 3, 5, 5]
    updates = [filled(family, c, k, 10.0**c) for c, k in enumerate(submodels)]
    got = averaged(family, state_of(family), updates)["b"]
    expected = [1111111 / 7, 1111100 / 5, 1100000 / 2]
    assert got.tolist() == pytest.approx(expected, rel=1e-6)


def test_untrained_elements_blocks_and_submodels_keep_their_values() -> None:
    family = make_family("resnet8", "nefl-w")
    state = family.initial_state(3)
    total = Aggregate(state, family)
    total.add(filled(family, 0, 2, 1.0))
    after = total.finish()
    assert after.round_number == 1
    for name, old in state.shared.items():
        new, shape = after.shared[name], family.layout(2)[name].shape
        assert (new[corner(shape)] == 1).all()
        rest = torch.ones_like(old, dtype=torch.bool)
        rest[corner(shape)] = False
        assert torch.equal(new[rest], old[rest])
    for k in (0, 2, 3, 4):
        for name, old in state.per_submodel[k].items():
            assert torch.equal(after.per_submodel[k][name], old)
    own = after.per_submodel[1]
    assert all((t == 1).all() for t in own.values())


def test_no_update_at_all_changes_nothing() -> None:
    family = make_family("resnet8", "nefl-wd")
    state = family.initial_state(0)
    after = Aggregate(state, family).finish()
    assert after.round_number == 1
    assert all(torch.equal(after.shared[n], t) for n, t in state.shared.items())


def test_one_full_submodel_is_fedavg() -> None:
    family = make_family("resnet8", "fedavg")
    state = family.initial_state(0)
    generator = torch.Generator().manual_seed(0)
    layout = family.layout(1)

    def draw() -> dict[str, Tensor]:
        return {n: torch.randn(i.shape, generator=generator).to(i.dtype) for n, i in layout.items()}

    trained = [draw() for _ in range(5)]
    examples = [3, 1, 4, 1, 5]
    for weighting, weights in (("equal", [1] * 5), ("examples", examples)):
        total = Aggregate(state, family, weighting=weighting)  # type: ignore[arg-type]
        for client, tensors in enumerate(trained):
            total.add(ClientUpdate(TrainTask(1, client, 1), tensors, examples[client]))
        got = total.finish().shared
        for name, info in layout.items():
            if info.dtype.is_floating_point:
                stack = torch.stack([t[name].double() for t in trained])
                w = torch.tensor(weights, dtype=torch.float64)
                expected = torch.einsum("c...,c->...", stack, w) / w.sum()
                torch.testing.assert_close(got[name].double(), expected, rtol=1e-5, atol=1e-6)


@st.composite
def families_with_updates(
    draw: st.DrawFn,
) -> tuple[Family, list[tuple[int, int]]]:
    """Random families in width and depth; widths need not grow together in all axes."""
    names = ["a", "b", "c"]
    full = {n: tuple(draw(st.lists(st.integers(1, 4), max_size=3))) for n in names}
    rows: list[Shapes] = []
    for _ in range(draw(st.integers(0, 3))):
        kept = draw(st.lists(st.sampled_from(names), unique=True))
        row = {n: tuple(draw(st.integers(1, size)) for size in full[n]) for n in kept}
        if row not in (*rows, full):  # a family has no member twice
            rows.append(row)
    family = bag_family([*rows, full])
    picks = draw(st.lists(st.tuples(st.integers(1, len(family)), st.integers(1, 9)), max_size=40))
    return family, picks


@settings(max_examples=150)
@given(drawn=families_with_updates(), weighted=st.booleans(), seed=st.integers(0, 9))
def test_brute_force_per_element(
    drawn: tuple[Family, list[tuple[int, int]]], weighted: bool, seed: int
) -> None:
    family, picks = drawn
    rng = np.random.default_rng(seed)
    shared = {
        n: torch.tensor(rng.normal(size=i.shape), dtype=torch.float32)
        for n, i in family.global_layout.items()
    }
    state = ServerState(0, shared, tuple({} for _ in family.specs))
    total = Aggregate(state, family, weighting="examples" if weighted else "equal")
    updates = []
    for client, (submodel, examples) in enumerate(picks):
        trained = {
            n: torch.tensor(rng.normal(size=i.shape), dtype=torch.float32)
            for n, i in family.layout(submodel).items()
        }
        updates.append((trained, examples if weighted else 1))
        total.add(ClientUpdate(TrainTask(1, client, submodel), trained, examples))
    after = total.finish()
    for name, old in state.shared.items():
        for element in product(*map(range, old.shape)):
            held = [
                (t[name][element].item(), w)
                for t, w in updates
                if name in t and all(i < n for i, n in zip(element, t[name].shape, strict=True))
            ]
            expected = (
                math.fsum(v * w for v, w in held) / sum(w for _, w in held)
                if held
                else old[element].item()
            )
            assert after.shared[name][element].item() == pytest.approx(expected, rel=2e-5, abs=2e-5)


def test_precision_holds_with_thousands_of_clients() -> None:
    """Float32 sums of thousands drift; groups that move on to float64 do not."""
    family = bag_family([{"w": (64,)}])
    clients = 5000
    values = 1 + torch.rand(clients, 64, generator=torch.Generator().manual_seed(0)) / 3
    total = Aggregate(state_of(family), family)
    naive = torch.zeros(64)
    for client in range(clients):
        naive += values[client]
        total.add(ClientUpdate(TrainTask(1, client, 1), {"w": values[client]}, 1))
    exact = values.double().mean(0)
    error = (total.finish().shared["w"].double() - exact).abs().max().item()
    naive_error = ((naive / clients).double() - exact).abs().max().item()
    assert error < GROUP * 2**-24
    assert naive_error > 5 * error


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_float_dtype_over_many_groups(dtype: torch.dtype) -> None:
    def build(spec: SubmodelSpec) -> nn.Module:
        return nn.Linear(2, 3 if spec.is_full else 1, dtype=dtype)

    full = ((1.0,),)
    family = Family(build, (SubmodelSpec(full, 0.5), SubmodelSpec(full)))
    total = Aggregate(family.initial_state(0), family)
    for client in range(3 * GROUP):
        total.add(filled(family, client, 1 + client % 2, 2.0 + client % 2))
    got = total.finish().shared["weight"]
    assert got.dtype == dtype
    assert got.tolist() == [[2.5, 2.5], [3, 3], [3, 3]]


def test_memory_is_one_set_of_sums() -> None:
    family = bag_family([{"w": (8,)}])
    total = Aggregate(state_of(family), family)
    for client in range(10 * GROUP):
        total.add(filled(family, client, 1, 1.0))
    held = [total._shared._partial["w"], total._shared._total["w"]]
    assert [t.dtype for t in held] == [torch.float32, torch.float64]
    assert total.clients == 10 * GROUP


def test_counters_take_the_largest() -> None:
    family = make_family("resnet8", "nefl-w")
    state = family.initial_state(0)
    total = Aggregate(state, family)
    for client, count in enumerate((3, 7, 5)):
        update = filled(family, client, 1, 1.0)
        trained = dict(update.trained)
        trained["bn1.num_batches_tracked"] = torch.tensor(count)
        total.add(ClientUpdate(update.task, trained, 1))
    after = total.finish()
    assert after.per_submodel[0]["bn1.num_batches_tracked"].item() == 7
    assert after.per_submodel[1]["bn1.num_batches_tracked"].item() == 0


def test_order_of_clients_hardly_matters_and_repeats_exactly() -> None:
    family = make_family("resnet8", "nefl-wd")
    state = family.initial_state(0)
    generator = torch.Generator().manual_seed(1)

    def updates() -> list[ClientUpdate]:
        generator.manual_seed(1)
        made = []
        for client in range(20):
            submodel = client % 5 + 1
            trained = {
                n: t + torch.randn(t.shape, generator=generator).to(t.dtype)
                for n, t in extract(state, family, submodel).items()
            }
            made.append(ClientUpdate(TrainTask(1, client, submodel), trained, 1))
        return made

    first, again = averaged(family, state, updates()), averaged(family, state, updates())
    turned = averaged(family, state, updates()[::-1])
    for name in first:
        assert torch.equal(first[name], again[name])
        torch.testing.assert_close(first[name], turned[name], rtol=1e-5, atol=1e-6)


def test_per_submodel_tensors_are_averaged_among_equals() -> None:
    family = make_family("resnet8", "nefl-w")
    total = Aggregate(family.initial_state(0), family)
    for client, (submodel, value) in enumerate([(1, 2.0), (1, 4.0), (2, 10.0)]):
        total.add(filled(family, client, submodel, value))
    after = total.finish()
    assert after.per_submodel[0]["layer1.0.step_size.value"].item() == 3
    assert (after.per_submodel[0]["bn1.running_var"] == 3).all()
    assert (after.per_submodel[1]["bn1.weight"] == 10).all()
    assert after.per_submodel[2]["layer1.0.step_size.value"].item() == 1
    assert family.per_submodel == (BatchNorm, StepSize)


def bad_updates() -> dict[str, tuple[ClientUpdate, str]]:
    family = make_family("resnet8", "nefl-w")
    good = filled(family, 7, 2, 1.0)

    def changed(**tensors: Tensor | None) -> ClientUpdate:
        trained = dict(good.trained)
        for key, tensor in tensors.items():
            name = key.replace("__", ".")
            if tensor is None:
                trained.pop(name)
            else:
                trained[name] = tensor
        return ClientUpdate(good.task, trained, 1)

    def of_task(**changes: Any) -> ClientUpdate:
        return replace(good, task=replace(good.task, **changes))

    bias = good.trained["fc.bias"]
    with warnings.catch_warnings(action="ignore"):  # torch calls these a prototype
        nested = torch.nested.nested_tensor([bias])
    weight = good.trained["fc.weight"]
    return {
        "missing": (changed(fc__bias=None), "lacks fc.bias"),
        "extra": (changed(evil=bias), "unexpected evil"),
        "shape": (changed(fc__bias=bias[:-1]), r"fc.bias has shape \(9,\), not \(10,\)"),
        "larger": (changed(fc__weight=torch.ones(10, 64)), "fc.weight has shape"),
        "dtype": (changed(fc__bias=bias.double()), "fc.bias has dtype torch.float64"),
        "nan": (changed(fc__bias=bias * math.nan), "fc.bias has values that are not finite"),
        "inf": (changed(fc__weight=weight.clone().fill_(math.inf)), "fc.weight has values"),
        "sparse": (changed(fc__weight=weight.to_sparse()), "fc.weight is not a dense"),
        "meta": (changed(fc__weight=weight.to("meta")), "fc.weight is not a dense"),
        "round": (ClientUpdate(TrainTask(2, 7, 2), good.trained, 1), "round 2, this is round 1"),
        "submodel": (ClientUpdate(TrainTask(1, 7, 6), good.trained, 1), "submodel 6"),
        "other submodel": (ClientUpdate(TrainTask(1, 7, 3), good.trained, 1), "has shape"),
        "no examples": (ClientUpdate(good.task, good.trained, 0), "0 examples"),
        "negative": (ClientUpdate(good.task, good.trained, -5), "-5 examples"),
        "absurd": (ClientUpdate(good.task, good.trained, 10**12), "examples"),
        "not a number": (ClientUpdate(good.task, good.trained, math.nan), "nan"),  # type: ignore[arg-type]
        "true": (ClientUpdate(good.task, good.trained, True), "True examples"),
        "a round that equals": (of_task(round_number=1.0), "round is 1.0, expected a whole number"),
        "a submodel of text": (of_task(submodel="2"), "submodel is '2', expected a whole number"),
        "no tensors": (ClientUpdate(good.task, None, 1), "brings a NoneType, not tensors"),  # type: ignore[arg-type]
        "names of another kind": (
            ClientUpdate(good.task, {**good.trained, 3: bias}, 1),  # type: ignore[dict-item]
            "has unexpected 3",
        ),
        "a list": (changed(fc__bias=[0.0] * 10), "fc.bias is a list, not a tensor"),  # type: ignore[arg-type]
        "nested": (
            changed(fc__bias=nested),
            "fc.bias is not a dense",
        ),
    }


@pytest.mark.parametrize("case", bad_updates())
def test_a_bad_update_is_named_and_leaves_the_sums_untouched(case: str) -> None:
    bad, reason = bad_updates()[case]
    family = make_family("resnet8", "nefl-w")
    state = family.initial_state(0)
    total = Aggregate(state, family)
    total.add(filled(family, 1, 1, 2.0))
    with pytest.raises(UpdateError, match=f"client 7: .*{reason}"):
        total.add(bad)
    assert total.clients == 1
    total.add(filled(family, 2, 2, 4.0))
    got = total.finish()
    clean = Aggregate(state, family)
    clean.add(filled(family, 1, 1, 2.0))
    clean.add(filled(family, 2, 2, 4.0))
    want = clean.finish()
    assert all(torch.equal(got.shared[n], t) for n, t in want.shared.items())
    for mine, theirs in zip(got.per_submodel, want.per_submodel, strict=True):
        assert all(torch.equal(mine[n], t) for n, t in theirs.items())


@pytest.mark.parametrize("client", [-1, 1.5, "7", None, [7], True])
def test_a_client_has_a_number(client: Any) -> None:
    family = make_family("resnet8", "nefl-w")
    good = filled(family, 7, 2, 1.0)
    wrong = replace(good, task=replace(good.task, client=client))
    for total in (
        Aggregate(family.initial_state(0), family),
        make_aggregate(family.initial_state(0), family, ServerConfig(average="median")),
    ):
        with pytest.raises(UpdateError, match="a client's number is .*, expected 0 or more"):
            total.add(wrong)


def test_sums_keep_no_graph() -> None:
    family = make_family("resnet8", "nefl-w")
    total = Aggregate(family.initial_state(0), family, weighting="examples")
    for client in (1, 2):
        good = filled(family, client, 2, 1.0, 3)
        trained = {
            n: t.clone().requires_grad_() if t.is_floating_point() else t
            for n, t in good.trained.items()
        }
        total.add(replace(good, trained=trained))
    assert not any(t.requires_grad for t in total.finish().shared.values())


def test_a_client_counts_once() -> None:
    family = make_family("resnet8", "nefl-w")
    total = Aggregate(family.initial_state(0), family)
    total.add(filled(family, 1, 1, 2.0))
    with pytest.raises(UpdateError, match="client 1: has an update"):
        total.add(filled(family, 1, 2, 2.0))


@pytest.mark.parametrize("size", [100, SMALL * 5])
def test_large_finite_values_are_finite(size: int) -> None:
    big = torch.full((size,), 3e38)
    square = big.reshape(10, -1).t()
    counts = torch.tensor(3)
    assert first_not_finite({}) is None
    assert first_not_finite({"n": counts, "e": torch.zeros(0)}) is None
    assert first_not_finite({"a": big, "b": square, "n": counts}) is None
    big[3] = math.inf
    assert first_not_finite({"n": counts, "b": square}) == "b"
    assert first_not_finite({"n": counts, "a": big}) == "a"
    assert first_not_finite({"h": torch.full((3,), 6e4, dtype=torch.float16)}) is None
