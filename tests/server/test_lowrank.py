"""Averages of adapters against brute force on products, and what the plain mean gets wrong."""

import pytest
import torch
from torch import Tensor, nn

from nefl.config import ServerConfig
from nefl.errors import ConfigError, UpdateError
from nefl.nesting.adapters import Adapted, Factors
from nefl.nesting.corners import extract
from nefl.nesting.spec import Family, SubmodelSpec, kept_channels
from nefl.server.aggregate import Aggregate
from nefl.server.averages import check_average, find_average, make_average
from nefl.server.steps import Momentum
from nefl.state import ClientUpdate, ServerState, TrainTask

RANK, IN, OUT = 4, 7, 5


class Net(Adapted):
    """One frozen map with an adapter, and a bias that is no factor of anything."""

    def __init__(self, spec: SubmodelSpec) -> None:
        super().__init__()
        rank = kept_channels(RANK, spec.stage_width(0))
        self.base = nn.Linear(IN, OUT, bias=False).requires_grad_(False)
        self.a = nn.Linear(IN, rank, bias=False)
        self.b = nn.Linear(rank, OUT, bias=False)
        self.shift = nn.Parameter(torch.zeros(OUT))
        self.factors = (Factors("a.weight", "b.weight"),)
        self.freeze()

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x)) + self.shift  # type: ignore[no-any-return]


FAMILY = Family(Net, tuple(SubmodelSpec(((1.0,),), (r / RANK,)) for r in (1, 2, RANK)))
STATE = FAMILY.initial_state(0)
RANKS = (1, 2, RANK)


def updates(submodels: tuple[int, ...], seed: int = 0) -> list[ClientUpdate]:
    generator = torch.Generator().manual_seed(seed)
    return [
        ClientUpdate(
            TrainTask(1, client, k),
            {
                n: torch.randn(t.shape, generator=generator)
                for n, t in extract(STATE, FAMILY, k).items()
            },
            examples=client + 1,
        )
        for client, k in enumerate(submodels)
    ]


def averaged(average: str, given: list[ClientUpdate], **server: str) -> ServerState:
    total = make_average(STATE, FAMILY, ServerConfig(average=average, **server))  # type: ignore[arg-type]
    for update in given:
        total.add(update)
    return total.finish()


def product(tensors: dict[str, Tensor], rank: int = RANK) -> Tensor:
    return tensors["b.weight"][:, :rank].double() @ tensors["a.weight"][:rank].double()


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("submodels", [(1, 2), (1, 1, 2, 3), (3, 3, 3), (2, 1, 3, 3, 2, 1, 3)])
@pytest.mark.parametrize("weighting", ["equal", "examples"])
def test_the_mean_of_products_is_exact_up_to_its_rank(
    submodels: tuple[int, ...], weighting: str
) -> None:
    given = updates(submodels)
    weights = [u.examples if weighting == "examples" else 1 for u in given]
    products = [w * product(dict(u.trained)) for w, u in zip(weights, given, strict=True)]
    exact = torch.stack(products).sum(0) / sum(weights)
    after = averaged("products", given, weighting=weighting)
    u, s, v = torch.linalg.svd(exact)
    for rank in RANKS:  # each member is the nearest adapter of its rank
        nearest = (u[:, :rank] * s[:rank]) @ v[:rank]
        assert relative(product(dict(after.shared), rank), nearest) < 1e-6
    if len(submodels) == 2:  # whose ranks add up to less than the global one: nothing is lost
        assert relative(product(dict(after.shared)), exact) < 1e-6
        assert torch.equal(after.shared["a.weight"][3:], STATE.shared["a.weight"][3:])
        assert not after.shared["b.weight"][:, 3:].any()
    shifts = [w * u.trained["shift"] for w, u in zip(weights, given, strict=True)]
    assert torch.allclose(after.shared["shift"], sum(shifts) / sum(weights))  # type: ignore[arg-type]


def test_means_of_factors_are_not_the_mean_of_products() -> None:
    given = updates((3, 3, 3, 3))
    exact = sum(product(dict(u.trained)) for u in given) / len(given)
    assert isinstance(exact, Tensor)
    factors, products = (averaged(each, given).shared for each in ("mean", "products"))
    assert relative(product(dict(factors)), exact) > 0.5
    assert relative(product(dict(products)), exact) < 0.5
    same = [ClientUpdate(TrainTask(1, c, 3), given[0].trained, 1) for c in range(3)]
    for average in ("mean", "padded", "products"):  # where all agree, so do all rules
        assert (
            relative(product(dict(averaged(average, same).shared)), product(dict(given[0].trained)))
            < 1e-6
        )


def test_one_member_of_full_rank_is_fedits_average() -> None:
    alone = Family(Net, FAMILY.specs[-1:])
    given = [
        ClientUpdate(TrainTask(1, u.task.client, 1), u.trained, u.examples)
        for u in updates((3, 3, 3))
    ]
    total = Aggregate(alone.initial_state(0), alone, weighting="examples")
    for update in given:
        total.add(update)
    after, examples = total.finish().shared, sum(u.examples for u in given)
    for name in after:  # FedIT: the factors of all clients, each weighted by its examples
        mean = sum(u.trained[name].double() * u.examples for u in given) / examples
        assert torch.allclose(after[name].double(), mean, atol=1e-6)  # type: ignore[arg-type]


def test_padding_weighs_by_norms_and_counts_zeros() -> None:
    given = updates((1, 2))
    norms = [float(product(dict(u.trained)).norm()) for u in given]
    after = averaged("padded", given).shared
    wanted = torch.zeros(RANK, IN, dtype=torch.float64)
    for norm, update in zip(norms, given, strict=True):
        a = update.trained["a.weight"]
        wanted[: len(a)] += norm * a
    wanted /= sum(norms)
    assert torch.allclose(after["a.weight"][:2].double(), wanted[:2], atol=1e-6)
    assert torch.equal(after["a.weight"][2:], STATE.shared["a.weight"][2:])  # nobody holds it
    still = [
        ClientUpdate(u.task, {**u.trained, "b.weight": torch.zeros_like(u.trained["b.weight"])}, 1)
        for u in updates((3, 3))
    ]
    mean = (still[0].trained["a.weight"] + still[1].trained["a.weight"]) / 2
    assert torch.allclose(averaged("padded", still).shared["a.weight"], mean, atol=1e-6)


def test_a_refused_update_leaves_no_trace() -> None:
    first, second = updates((2, 3))
    for average in ("padded", "products"):
        total = make_average(STATE, FAMILY, ServerConfig(average=average))
        total.add(first)
        with pytest.raises(UpdateError, match="has an update in this round already"):
            total.add(ClientUpdate(first.task, first.trained, 1))
        bad = {**second.trained, "a.weight": torch.full((RANK, IN), torch.nan)}
        with pytest.raises(UpdateError, match="a.weight"):
            total.add(ClientUpdate(second.task, bad, 1))
        alone = averaged(average, [first]).shared
        assert all(torch.equal(t, alone[n]) for n, t in total.finish().shared.items())


def test_what_does_not_go_together_is_refused() -> None:
    plain = Family(lambda spec: nn.Linear(2, kept_channels(4, spec.stage_width(0))), FAMILY.specs)
    for average in ("padded", "products"):
        with pytest.raises(ConfigError, match="Linear: has no adapters"):
            check_average(ServerConfig(average=average), plain)
        check_average(ServerConfig(average=average), FAMILY)
    with pytest.raises(ConfigError, match=r"products.*server.step Momentum cannot follow"):
        check_average(ServerConfig(average="products"), FAMILY, Momentum())
    check_average(ServerConfig(average="padded"), FAMILY, Momentum())
    with pytest.raises(ConfigError, match=r"'median': method lora-padded averages by 'padded'"):
        find_average(ServerConfig(average="median"), "padded", "lora-padded")
    assert find_average(ServerConfig(), "padded", "lora-padded").average == "padded"
