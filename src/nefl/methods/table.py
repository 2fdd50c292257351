"""The methods by name: NeFL, its variants and its rivals, each a row of the same few choices."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from nefl.client.drift import ControlVariates, Dynamic, Proximal
from nefl.client.exits import Graded, Mutual
from nefl.client.objective import Objective
from nefl.client.within import Teacher, Trains, Which, Within
from nefl.errors import ConfigError, unknown_name
from nefl.methods.method import Method
from nefl.nesting.modules import StepSize
from nefl.server.steps import FedDyn, Momentum, Scaffold

ENTRY_POINTS = "nefl.methods"
"""The group of entry points by which installed packages give methods a name."""

_ROWS = {
    "nefl-wd": Method("both", learned_steps=True, about="NeFL, width and depth"),
    "nefl-w": Method("width", learned_steps=True, about="NeFL, width alone"),
    "nefl-d": Method("depth", learned_steps=True, about="NeFL, depth alone"),
    "nefl-do": Method(
        "depth", learned_steps=True, compensated=True, about="NeFL-D, steps start larger"
    ),
    "nefl-co-d": Method(
        "depth",
        learned_steps=True,
        objective=Within("smallest"),
        step=Momentum(),
        about="NeFL-D, the smallest inside is trained within, server momentum",
    ),
    "nefl-co-wd": Method(
        "both",
        learned_steps=True,
        objective=Within("smallest"),
        step=Momentum(),
        small_first=(0.1, 0.3),
        about="NeFL-WD, small submodels first, the smallest within, server momentum",
    ),
    "nefl-wd-nl": Method("both", about="NeFL-WD with constant steps"),
    "nefl-w-nl": Method("width", about="NeFL-W with constant steps"),
    "nefl-d-nl": Method("depth", about="NeFL-D with constant steps"),
    "nefl-do-nl": Method("depth", compensated=True, about="NeFL-D_O with constant steps"),
    "nefl-wd-steps": Method(
        "both", (StepSize,), learned_steps=True, about="NeFL-WD, but batch norms are shared"
    ),
    "nefl-wd-shared": Method("both", (), about="NeFL-WD, all shared and steps constant"),
    "fjord": Method("width", about="FjORD: width, batch norms per submodel"),
    "fjord-od": Method(
        "width", objective=Within("one"), about="FjORD with ordered dropout in local steps"
    ),
    "heterofl": Method(
        "width", (), norm="static", clip_norm=1.0, about="HeteroFL: width, static norms"
    ),
    "fedrolex": Method(
        "width",
        (),
        norm="static",
        clip_norm=1.0,
        rolling=True,
        about="FedRolex: HeteroFL with rolling windows",
    ),
    "depthfl": Method("depth", (), exits="own", about="DepthFL as compared in the paper"),
    "depthfl-sd": Method(
        "depth", (), exits="all", objective=Mutual(), about="DepthFL: all exits, self-distillation"
    ),
    "scalefl": Method("both", (), exits="own", about="ScaleFL as compared in the paper"),
    "scalefl-sd": Method(
        "both", (), exits="all", objective=Graded(), about="ScaleFL: all exits, self-distillation"
    ),
    "fedavg": Method("none", (), members="full", about="FedAvg: the full model for everyone"),
    "fedavg-capable": Method(
        "none", (), members="capable", about="FedAvg: the full model, only those who can train it"
    ),
    "fedavg-small": Method(
        "both", (), members="small", about="FedAvg: the smallest submodel for everyone"
    ),
    "lora": Method("rank", (), about="adapters of several ranks, averaged by coverage"),
    "lora-padded": Method(
        "rank", (), average="padded", about="HetLoRA's average: zero-padded, weighted by norms"
    ),
    "lora-ffa": Method(
        "rank", (), fixed_a=True, about="FFA-LoRA: A is drawn once, B is trained and averaged"
    ),
    "lora-heads": Method(
        "rank", (), heads=True, about="RAVAN's heads: small matrices between frozen bases"
    ),
    "lora-products": Method(
        "rank", (), average="products", about="FlexLoRA's average: of products, then an SVD"
    ),
}


def within(
    family: str = "nefl-d",
    which: Which = "smallest",
    weight: float = 1.0,
    fade: float = 1.0,
    every: int = 1,
    from_round: int = 1,
    teacher: Teacher = "none",
    teaching: float = 0.5,
    temperature: float = 1.0,
    trains: Trains = "all",
    leave: float = 0.0,
) -> Method:
    """Return a method whose clients train smaller submodels inside their own.

    Args:
        family: the method whose submodels are trained.
        which: which ones besides the client's own; this and the rest as `Within` has them.
        weight: what their loss counts, the own one's being 1.
        fade: the share of that weight which is left in the last round.
        every: they are trained in every so many-th step.
        from_round: the first round in which they are.
        teacher: who teaches whom.
        teaching: the share of a taught one's loss that comes from its teacher.
        temperature: what outputs are divided by before they are compared.
        trains: whether they train their corners too, or only what they have for themselves.
        leave: the share of the others' gradients that is kept from the smallest one's corners.
    """
    inside = Within(
        which,
        weight=weight,
        fade=fade,
        every=every,
        from_round=from_round,
        teacher=teacher,
        teaching=teaching,
        temperature=temperature,
        trains=trains,
        leave=leave,
    )
    about = "smaller submodels are trained inside larger ones"
    return replace(_plain_row(family), objective=inside, about=about)


def exclusive(member: int = 1, family: str = "nefl-d") -> Method:
    """Return FedAvg of one submodel, trained by those clients alone that can hold it.

    Args:
        member: the number of the submodel in its family, from 1.
        family: the method whose submodel it is.
    """
    if not isinstance(member, int) or isinstance(member, bool) or member < 1:
        raise ConfigError(f"model.method_options.member is {member!r}: give a number from 1")
    about = "FedAvg of one submodel, by the clients that can hold it"
    return replace(_plain_row(family), members="exclusive", alone=member, about=about)


def fedprox(mu: float = 0.01, family: str = "nefl-wd") -> Method:
    """Return FedProx over another method's family.

    Args:
        mu: how strongly clients are held to the weights they began with.
        family: the method whose submodels are trained; `fedavg` is FedProx as published.
    """
    row = _row(family)
    about = "FedProx: clients are held near the server's weights"
    return replace(row, objective=Proximal(mu, of=row.objective), about=about)


def scaffold(family: str = "nefl-wd") -> Method:
    """Return SCAFFOLD over another method's family: control variates are corners too.

    Args:
        family: the method whose submodels are trained; `fedavg` is SCAFFOLD as published.
    """
    row = _row(family)
    return replace(
        row,
        objective=ControlVariates(of=row.objective),
        step=Scaffold(),
        about="SCAFFOLD: control variates of clients and server",
    )


def feddyn(alpha: float = 0.1, family: str = "nefl-wd") -> Method:
    """Return FedDyn over another method's family.

    Args:
        alpha: the weight of its regulariser.
        family: the method whose submodels are trained; `fedavg` is FedDyn as published.
    """
    row = _row(family)
    return replace(
        row,
        objective=Dynamic(alpha, of=row.objective),
        step=FedDyn(),
        about="FedDyn: a regulariser with a memory at clients and server",
    )


def depthfl_full(alpha: float = 0.1, slow_start: int = 300) -> Method:
    """Return DepthFL at its authors' full strength: all exits, self-distillation, FedDyn.

    Kim et al., "DepthFL: Depthwise Federated Learning for Heterogeneous Clients" (ICLR 2023),
    Algorithm 1.

    Args:
        alpha: the weight of FedDyn's regulariser.
        slow_start: rounds over which the distillation comes to its full weight.
    """
    exits = Mutual(slow_start)
    return replace(
        _ROWS["depthfl-sd"],
        objective=Dynamic(alpha, of=exits),
        step=FedDyn(),
        about="DepthFL: all exits, self-distillation, FedDyn",
    )


def _plain_row(name: object) -> Method:
    """Return a method of nested submodels whose clients follow the task's loss alone."""
    plain = {
        n: r for n, r in _ROWS.items() if r.members == "scaled" and type(r.objective) is Objective
    }
    row = _row(name, plain)
    if name not in plain:
        raise ConfigError(
            f"model.method_options.family {name!r}: has one submodel alone, or an objective of its "
            f"own; take one of {', '.join(plain)}"
        )
    return row


def _row(name: object, fitting: Iterable[str] = ()) -> Method:
    if name in MAKERS:
        raise ConfigError(
            f"model.method_options.family {name!r}: has options of its own, and no place inside "
            f"another method; take one of {', '.join(fitting or _ROWS)}"
        )
    if not isinstance(name, str) or name not in _ROWS:
        raise unknown_name("model.method_options.family", str(name), fitting or _ROWS)
    return _ROWS[name]


MAKERS: Mapping[str, Callable[..., Method]] = {
    "fedprox": fedprox,
    "scaffold": scaffold,
    "feddyn": feddyn,
    "depthfl-full": depthfl_full,
    "within": within,
    "exclusive": exclusive,
}
"""Methods that take `model.method_options`."""


class _Table(Mapping[str, Method]):
    """Methods by name, to be read."""

    def __init__(self, rows: Mapping[str, Method]) -> None:
        self._rows = dict(rows)

    def __getitem__(self, name: str) -> Method:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __setitem__(self, name: str, _: object) -> None:
        # A row that only this process has would be unknown to workers, and to a run that goes on.
        raise ConfigError(
            f"METHODS[{name!r}]: the table is for reading; give a method of your own as "
            "model.method package.module:thing, or register it as an entry point of group "
            f"{ENTRY_POINTS!r}"
        )


METHODS = _Table(_ROWS | {name: make() for name, make in MAKERS.items()})
"""All methods of nefl, as they are without options."""
