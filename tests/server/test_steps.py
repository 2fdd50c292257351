"""Server steps against twins that loop over elements and clients, and what is refused."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nefl.artifacts.checkpoint import state_sha256
from nefl.config import ServerConfig, StepConfig
from nefl.errors import ConfigError, OwnCodeError, UpdateError
from nefl.nesting.modules import StepSize
from nefl.nesting.sets import extract_set, set_layout
from nefl.nesting.spec import Family, SubmodelSpec
from nefl.server.check import not_finite_in
from nefl.server.limits import within_limits
from nefl.server.stepping import make_aggregate, remembering
from nefl.server.steps import Adam, Cell, FedDyn, Momentum, Scaffold, ServerStep, Yogi, find_step
from nefl.state import ClientFailure, ClientUpdate, ServerState, TrainTask

POPULATION = 7
SHAPES: Sequence[Mapping[str, tuple[int, ...]]] = [
    {"weight": (1, 3)},  # wide where the second is narrow: corners need not nest in one order
    {"weight": (3, 2), "bias": (2,)},
    {"weight": (4, 4), "bias": (3,), "scale": ()},
]


class Uneven(nn.Module):
    """Parameters of odd corners, a statistic, a counter, and a step size of its own."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.ones(shape, dtype=dtype)))
        self.register_buffer("running", torch.ones(shapes["weight"][0], dtype=dtype))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.steps = StepSize(1.0)


def uneven_family(dtype: torch.dtype = torch.float32) -> Family:
    def build(spec: SubmodelSpec) -> nn.Module:
        return Uneven(SHAPES[round(spec.stage_width(0) * 3) - 1], dtype)

    return Family(build, tuple(SubmodelSpec(((1.0,),), (k + 1) / 3) for k in range(3)))


FAMILY = uneven_family()
OWN = "steps.value"
ROUNDS = [[1, 1, 2], [3, 1, 3, 2], [1], [2, 3]]
"""The submodels of each round's clients: most elements are left out of some round."""


def drawn_update(
    generator: torch.Generator, round_number: int, client: int, submodel: int, sends: Sequence[str]
) -> ClientUpdate:
    def draw(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator)

    trained = {
        n: draw(i.shape) if i.dtype.is_floating_point else torch.tensor(client)
        for n, i in FAMILY.layout(submodel).items()
    }
    layout = set_layout(FAMILY, submodel)
    sent = {name: {n: draw(i.shape) for n, i in layout.items()} for name in sends}
    return ClientUpdate(TrainTask(round_number, client, submodel), trained, 1 + client, {}, sent)


def drawn_rounds(sends: Sequence[str] = ()) -> list[list[ClientUpdate]]:
    generator = torch.Generator().manual_seed(0)
    return [
        [drawn_update(generator, r, c, k, sends) for c, k in enumerate(submodels)]
        for r, submodels in enumerate(ROUNDS, start=1)
    ]


def run(
    step: ServerStep | None,
    server: ServerConfig | None = None,
    sends: Sequence[str] = (),
    state: ServerState | None = None,
) -> list[ServerState]:
    """The states after each of the rounds, and the first of all."""
    states = [state or FAMILY.initial_state(0)]
    for updates in drawn_rounds(sends):
        total = make_aggregate(
            states[-1],
            FAMILY,
            server or ServerConfig(),
            step=step,
            sends=sends,
            population=POPULATION,
        )
        for update in updates:
            total.add(update)
        states.append(total.finish())
    return states


# One element's twin: its old value, what each client brought of it, what each sent, and its memory,
# which it changes. Straight from the pseudo-code.
Twin = Callable[[float, float, list[float], list[float], dict[str, float]], float]


def momentum_twin(
    w: float, mean: float, _v: list[float], _s: list[float], m: dict[str, float]
) -> float:
    m["momentum"] = 0.6 * m.get("momentum", 0) + (mean - w)
    return w + 0.7 * m["momentum"]


def adam_twin(
    w: float, mean: float, _v: list[float], _s: list[float], m: dict[str, float]
) -> float:
    delta = mean - w
    m["momentum"] = 0.9 * m.get("momentum", 0) + 0.1 * delta
    m["variance"] = 0.99 * m.get("variance", 1e-6) + 0.01 * delta**2
    return w + 0.01 * m["momentum"] / (math.sqrt(m["variance"]) + 1e-3)


def yogi_twin(
    w: float, mean: float, _v: list[float], _s: list[float], m: dict[str, float]
) -> float:
    delta, v = mean - w, m.get("variance", 1e-6)
    m["momentum"] = 0.9 * m.get("momentum", 0) + 0.1 * delta
    m["variance"] = v - 0.01 * delta**2 * math.copysign(1, v - delta**2)
    return w + 0.01 * m["momentum"] / (math.sqrt(m["variance"]) + 1e-3)


def scaffold_twin(
    _w: float, mean: float, _v: list[float], sent: list[float], m: dict[str, float]
) -> float:
    m["control"] = m.get("control", 0) + math.fsum(sent) / POPULATION
    return mean


def feddyn_twin(
    w: float, mean: float, values: list[float], _s: list[float], m: dict[str, float]
) -> float:
    """With the paper's h = -alpha * drift, and a sum over the clients where ours has the mean."""
    alpha = 0.1
    h = -alpha * m.get("drift", 0) - alpha / POPULATION * math.fsum(v - w for v in values)
    m["drift"] = -h / alpha
    return mean - h / alpha


STEPS: dict[str, tuple[ServerStep, Twin, tuple[str, ...]]] = {
    "momentum": (Momentum(), momentum_twin, ()),
    "adam": (Adam(), adam_twin, ()),
    "yogi": (Yogi(), yogi_twin, ()),
    "scaffold": (Scaffold(), scaffold_twin, ("control",)),
    "feddyn": (FedDyn(), feddyn_twin, ()),
}


def by_brute_force(
    twin: Twin, average: Callable[[list[float]], float], sends: Sequence[str]
) -> dict[tuple[int, str, tuple[int, ...]], tuple[float, dict[str, float]]]:
    """Value and memory of every element after all rounds; by submodel, 0 for what is shared."""
    first = FAMILY.initial_state(0)
    groups = {0: first.shared, **dict(enumerate(first.per_submodel, start=1))}
    found: dict[tuple[int, str, tuple[int, ...]], tuple[float, dict[str, float]]] = {}
    for owner, tensors in groups.items():
        for name, tensor in tensors.items():
            if name in ("running", "seen"):
                continue
            for place in product(*map(range, tensor.shape)):
                value, memory = tensor[place].item(), dict[str, float]()
                for updates in drawn_rounds(sends):
                    holders = [
                        u
                        for u in updates
                        if name in u.trained
                        and owner in (0, u.task.submodel)
                        and all(i < n for i, n in zip(place, u.trained[name].shape, strict=True))
                    ]
                    if holders:
                        values = [u.trained[name][place].item() for u in holders]
                        sent = [u.sent[s][name][place].item() for u in holders for s in sends]
                        value = twin(value, average(values), values, sent, memory)
                found[owner, name, place] = value, memory
    return found


@pytest.mark.parametrize(
    ("name", "average"),
    # The pseudo-code of the last two has a sum over clients, for which there is no median.
    [*((name, "mean") for name in STEPS), *((name, "median") for name in list(STEPS)[:3])],
)
def test_against_a_twin_that_loops_over_elements_and_clients(name: str, average: str) -> None:
    step, twin, sends = STEPS[name]
    how = median if average == "median" else (lambda values: math.fsum(values) / len(values))
    expected = by_brute_force(twin, how, sends)
    after = run(step, ServerConfig(average=average), sends)[-1]
    for (owner, tensor, place), (value, memory) in expected.items():
        group = after.per_submodel[owner - 1] if owner else after.shared
        assert group[tensor][place].item() == pytest.approx(value, rel=1e-4, abs=1e-5)
        where = f"submodel/{owner}" if owner else "shared"
        for each in step.keeps:
            kept = after.memory[f"{each}/{where}/{tensor}"][place].item()
            start = step.starts.get(each, 0.0)
            assert kept == pytest.approx(memory.get(each, start), rel=1e-4, abs=1e-6)
    assert len(expected) == 16 + 3 + 1 + 3


@pytest.mark.parametrize("name", STEPS)
def test_statistics_and_counters_take_the_average(name: str) -> None:
    step, _, sends = STEPS[name]
    plain, stepped = run(None)[-1], run(step, sends=sends)[-1]
    if not sends:  # then other random numbers are drawn
        assert torch.equal(plain.shared["running"], stepped.shared["running"])
    assert torch.equal(plain.shared["seen"], stepped.shared["seen"])
    assert not [key for key in stepped.memory if "running" in key or "seen" in key]


def test_elements_that_nobody_trained_keep_value_and_memory() -> None:
    states = run(Momentum())
    before, after = states[2], states[3]  # a round of the first submodel alone
    assert all((t != 0).all() for t in before.memory.values()), "all were trained before"
    assert (before.shared["weight"] != after.shared["weight"]).sum() == 3
    assert torch.equal(before.shared["bias"], after.shared["bias"])
    key = "momentum/shared/weight"
    assert (before.memory[key] != after.memory[key]).sum() == 3
    for k, moved in ((1, True), (2, False), (3, False)):
        key = f"momentum/submodel/{k}/{OWN}"
        assert (before.memory[key] != after.memory[key]).item() is moved
        assert (before.per_submodel[k - 1][OWN] != after.per_submodel[k - 1][OWN]).item() is moved


def test_the_plain_step_changes_no_bit() -> None:
    plain = run(None)[-1]
    assert not plain.memory
    assert state_sha256(run(ServerStep())[-1]) == state_sha256(plain)


def test_a_repeated_round_starts_from_what_there_was() -> None:
    """A round that does not count must leave the memory that the next attempt starts from."""
    states = run(Momentum())
    again = run(Momentum(), state=states[0])
    assert state_sha256(again[-1]) == state_sha256(states[-1])


def test_elements_with_too_few_voters_make_no_step() -> None:
    two = ServerConfig(average="median", min_holders=2)
    states = run(Momentum(), two)
    # The first round: two clients with submodel 1, one with submodel 2.
    moved = states[1].memory["momentum/shared/weight"] != 0
    assert moved.nonzero().tolist() == [[0, 0], [0, 1], [0, 2]]
    assert torch.equal(states[2].shared["weight"], states[3].shared["weight"])


def test_a_step_sees_who_trained_and_how_many_there_are() -> None:
    seen: list[tuple[int, str, int, tuple[int, ...]]] = []

    class Looking(ServerStep):
        def step(self, cell: Cell) -> Tensor:
            assert cell.population == POPULATION
            assert cell.before.dtype == cell.mean.dtype == torch.float32
            seen.append((cell.round_number, cell.name, cell.clients, tuple(cell.before.shape)))
            cell.before.zero_()  # it has copies: what it does to them is its affair
            return cell.mean

    first = FAMILY.initial_state(0)
    expected = state_sha256(first)
    run(Looking(), state=first)
    assert state_sha256(first) == expected
    rows = {(clients, shape) for r, name, clients, shape in seen if (r, name) == (1, "weight")}
    assert rows == {(3, (1, 2)), (2, (1, 1)), (1, (2, 2))}
    assert {(r, c) for r, name, c, _ in seen if name == "scale"} == {(2, 2), (4, 1)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_float_dtype(dtype: torch.dtype) -> None:
    family = uneven_family(dtype)
    state = family.initial_state(0)
    total = make_aggregate(state, family, ServerConfig(), step=Momentum())
    layout = family.layout(3)
    trained = {n: torch.full(i.shape, 2, dtype=i.dtype) for n, i in layout.items()}
    total.add(ClientUpdate(TrainTask(1, 0, 3), trained, 1))
    after = total.finish()
    assert after.shared["weight"].dtype == after.memory["momentum/shared/weight"].dtype == dtype
    assert after.shared["weight"].double().flatten().tolist() == pytest.approx([1.7] * 16, rel=0.01)


def test_memory_follows_the_step() -> None:
    state = remembering(FAMILY.initial_state(0), FAMILY, Adam(tau=0.5))
    assert (state.memory["variance/shared/weight"] == 0.25).all()
    assert (state.memory["momentum/submodel/2/steps.value"] == 0).all()
    assert remembering(state, FAMILY, Adam()) is state
    marked = replace(state, memory={n: t + 1 for n, t in state.memory.items()})
    other = remembering(marked, FAMILY, Momentum())
    assert {key.partition("/")[0] for key in other.memory} == {"momentum"}
    assert (other.memory["momentum/shared/weight"] == 1).all(), "what both keep stays"
    assert not remembering(state, FAMILY, None).memory
    cut = extract_set(marked.memory, FAMILY, 2, "variance")
    assert {n: tuple(t.shape) for n, t in cut.items()} == {
        "weight": (3, 2),
        "bias": (2,),
        OWN: (),
    }


def test_a_memory_that_is_not_finite_is_named() -> None:
    state = remembering(FAMILY.initial_state(0), FAMILY, Momentum())
    state.memory["momentum/shared/bias"][1] = math.inf
    assert not_finite_in(state) == "the step's memory momentum/shared/bias"


def changed_sets(update: ClientUpdate, **tensors: Tensor | None) -> ClientUpdate:
    control = {n: t for n, t in {**update.sent["control"], **tensors}.items() if t is not None}
    return replace(update, sent={"control": control})


BAD_SETS: dict[str, tuple[Callable[[ClientUpdate], ClientUpdate], str]] = {
    "none": (lambda u: replace(u, sent={}), "sends the sets none; expected control"),
    "another": (
        lambda u: replace(u, sent={"evil": u.sent["control"]}),
        "sends the sets evil; expected control",
    ),
    "more": (
        lambda u: replace(u, sent={**u.sent, "evil": u.sent["control"]}),
        "control, evil; expected control",
    ),
    "no sets": (lambda u: replace(u, sent=3), "sends a int, not sets"),  # type: ignore[arg-type]
    "no tensors": (
        lambda u: replace(u, sent={"control": [1]}),  # type: ignore[dict-item]
        "brings a list, not tensors",
    ),
    "missing": (lambda u: changed_sets(u, bias=None), "control of lacks bias"),
    "a statistic": (
        lambda u: changed_sets(u, running=torch.ones(3)),
        "control of has unexpected running",
    ),
    "shape": (
        lambda u: changed_sets(u, bias=torch.ones(3)),
        r"control of bias has shape \(3,\), not \(2,\)",
    ),
    "dtype": (
        lambda u: changed_sets(u, bias=torch.ones(2, dtype=torch.float64)),
        "control of bias has dtype torch.float64",
    ),
    "not finite": (
        lambda u: changed_sets(u, bias=torch.tensor([1, math.nan])),
        "control of bias has values that are not finite",
    ),
    "weights of another shape": (
        lambda u: replace(u, trained={**u.trained, "bias": torch.ones(3)}),
        "client 2: bias has shape",
    ),
}


@pytest.mark.parametrize("kind", BAD_SETS)
def test_what_clients_send_is_checked_like_their_weights(kind: str) -> None:
    spoil, message = BAD_SETS[kind]
    *good, third = drawn_rounds(["control"])[0]

    def total_of(updates: list[ClientUpdate]) -> ServerState:
        state = FAMILY.initial_state(0)
        total = make_aggregate(
            state, FAMILY, ServerConfig(), step=Scaffold(), sends=("control",), population=3
        )
        for update in updates[:2]:
            total.add(update)
        for update in updates[2:]:
            with pytest.raises(UpdateError, match=message):
                total.add(update)
        return total.finish()

    assert third.task.submodel == 2
    after = total_of([*good, spoil(third)])
    assert state_sha256(after) == state_sha256(total_of(good)), "nothing of it was counted"


def test_sets_that_nobody_asked_for_are_refused() -> None:
    update = drawn_rounds(["control"])[0][0]
    for step in (None, Momentum()):
        total = make_aggregate(FAMILY.initial_state(0), FAMILY, ServerConfig(), step=step)
        with pytest.raises(UpdateError, match="sends the sets control; expected none"):
            total.add(update)


def test_sets_wait_with_their_update_and_are_checked_before_it() -> None:
    """A limit by the median holds updates back, and engines use their memory again."""
    state = FAMILY.initial_state(0)
    updates = drawn_rounds(["control"])[0]

    def reusing() -> Any:
        for update in updates:
            yield update
            for tensor in update.sent["control"].values():
                tensor.fill_(math.nan)

    before = {n: t.clone() for n, t in updates[0].sent["control"].items()}
    server = ServerConfig(norm_limit=100.0)
    first, *_ = within_limits(reusing(), state, FAMILY, server, sends=("control",))
    assert isinstance(first, ClientUpdate)
    assert all(torch.equal(first.sent["control"][n], t) for n, t in before.items())
    refused = next(within_limits(iter([first]), state, FAMILY, server))
    assert isinstance(refused, ClientFailure)
    assert "expected none" in refused.reason


class Failing(ServerStep):
    keeps = ("kept",)

    def __init__(self, how: str) -> None:
        self.how = how

    def step(self, cell: Cell) -> Tensor:
        if self.how == "raises":
            raise KeyError("nothing there")
        if self.how == "forgets":
            cell.memory.clear()
        if self.how == "shrinks":
            cell.memory["kept"] = cell.mean.sum()
        if self.how == "number":
            return 3  # type: ignore[return-value]
        return cell.mean


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", r"server step Failing \(.*test_steps.py, line \d+\) failed: KeyError"),
        ("forgets", "left nothing in the memory of weight, and keeps kept; name what"),
        ("shrinks", r"made kept of weight into \(\), expected a tensor of shape \(1, 2\)"),
        ("number", "made values of weight into int, expected a tensor"),
    ],
)
def test_a_step_of_ones_own_that_fails_is_named(how: str, message: str) -> None:
    with pytest.raises(OwnCodeError, match=message):
        run(Failing(how))


def make_failing(rate: float) -> ServerStep:
    return Failing(f"rate {rate}")


def no_step() -> int:
    return 3


class BadNames(ServerStep):
    keeps = ("a/b",)


class BadStarts(ServerStep):
    keeps = ("kept",)
    starts = {"other": 1.0}  # noqa: RUF012 - as a user writes it


def test_steps_are_found_by_name_and_by_reference() -> None:
    assert find_step(ServerConfig(step=StepConfig())) is None
    assert type(find_step(ServerConfig(step=StepConfig("yogi", tau=0.1)))) is Yogi
    found = find_step(ServerConfig(step=StepConfig(f"{__name__}:make_failing", rate=2.0)))
    assert isinstance(found, ServerStep)
    assert found.how == "rate 2.0"  # type: ignore[attr-defined]
    assert find_step(ServerConfig(step=StepConfig()), FedDyn(), method="feddyn") is not None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": f"{__name__}:make_failing"}, "takes .*called with no arguments"),
        ({"name": f"{__name__}:no_step"}, "makes int, expected a step; derive it from"),
        ({"name": f"{__name__}:BadNames"}, r"keeps is \('a/b',\); give a tuple"),
        ({"name": f"{__name__}:BadStarts"}, r"starts is {'other': 1.0}; give a finite number"),
        ({"name": f"{__name__}:Scaffold"}, "needs control from every client, and they send noth"),
        ({"name": f"{__name__}:absent"}, "cannot be imported"),
    ],
)
def test_what_is_no_step_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_step(ServerConfig(step=StepConfig(**given)))


@pytest.mark.parametrize("asked", ["adam", "mean"])
def test_a_method_with_a_step_takes_no_other(asked: str) -> None:
    with pytest.raises(ConfigError, match=f"'{asked}': method feddyn has a step of its own; leave"):
        find_step(ServerConfig(step=StepConfig(asked)), FedDyn(), method="feddyn")
    own = FedDyn()
    assert find_step(ServerConfig(), own, method="feddyn", sends=own.needs) is own


@pytest.mark.parametrize("step", [Scaffold(), FedDyn()])
def test_what_is_published_for_equal_clients_refuses_weights(step: ServerStep) -> None:
    server = ServerConfig(weighting="examples")
    with pytest.raises(ConfigError, match=r"mine: its step \w+ counts heads.* set it to 'equal'"):
        find_step(server, step, method="mine", sends=["control"])
    assert find_step(replace(server, step=StepConfig("adam"))) is not None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "sgd"}, "'sgd' is unknown; there are: auto, mean, momentum, adam, yogi, or give"),
        ({"rate": 0.5}, "server.step.rate: step 'auto' has none; it has no settings"),
        ({"name": "momentum", "tau": 0.5}, "step.tau: step 'momentum' has none; it has rate, mom"),
        ({"name": "adam", "momentum": 1.0}, "server.step.momentum is 1.0: give 0 or more, below 1"),
        ({"name": "adam", "rate": 0.0}, "server.step.rate is 0.0: give above 0"),
    ],
)
def test_settings_that_a_step_has_not_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StepConfig(**given)
