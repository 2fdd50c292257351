"""The check of a client's update: only what its task asked for may be averaged."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from nefl.errors import UpdateError
from nefl.nesting.sets import set_layout, travel_layout
from nefl.nesting.spec import Family, Layout
from nefl.state import ClientUpdate, ServerState, Sums, Tensors, TrainTask

MAX_EXAMPLES = 10**9
"""No client has more examples than this; a larger claim is a mistake or an attack."""

SMALL = 1 << 12
"""Elements below which tensors are probed together: the calls would cost more than the work."""

SUM_TYPES = (torch.float32, torch.float64)
"""What sums of quantities are held in, whatever the quantities are."""

NOT_FINITE = "values that are not finite"


def check_update(
    update: ClientUpdate,
    family: Family,
    round_number: int,
    sends: Collection[str] = (),
    *,
    counted: Collection[int] = (),
) -> None:
    """Refuse an update that is not exactly what its task asked for.

    Args:
        update: the update.
        family: the family.
        round_number: the round that it has to be for.
        sends: the sets that it has to bring beside the weights.
        counted: the clients that have an update in this round.

    Raises:
        UpdateError: naming the client, the tensor and the reason.
    """
    task = update.task
    _check_numbers(task)
    who = f"client {task.client}"
    if task.round_number != round_number:
        raise UpdateError(
            f"{who}: update is for round {task.round_number}, this is round {round_number}"
        )
    if not 1 <= task.submodel <= len(family):
        raise UpdateError(f"{who}: submodel {task.submodel}; there are 1 to {len(family)}")
    examples = update.examples
    if not _is_whole(examples) or not 0 < examples <= MAX_EXAMPLES:
        raise UpdateError(f"{who}: {examples!r:.40} examples; expected 1 to {MAX_EXAMPLES}")
    _check_tensors(who, "", update.trained, travel_layout(family, task.submodel, ()))
    if not isinstance(update.sent, Mapping):
        raise UpdateError(f"{who}: sends a {type(update.sent).__name__}, not sets by name")
    if update.sent.keys() != set(sends):
        found = ", ".join(str(name)[:40] for name in list(update.sent)[:5]) or "none"
        raise UpdateError(f"{who}: sends the sets {found}; expected {', '.join(sends) or 'none'}")
    if sends:
        layout = set_layout(family, task.submodel)
        for name in sends:
            _check_tensors(who, f"{name} of ", update.sent[name], layout)
    if task.client in counted:
        raise UpdateError(f"{who}: has an update in this round already")


def check_sums(sums: Sums, family: Family, round_number: int, weighting: str) -> None:
    """Refuse sums that cannot be those of this round's updates.

    Raises:
        UpdateError: naming the tensor or the weight at fault.
    """
    if sums.round_number != round_number or sums.weighting != weighting:
        raise UpdateError(
            f"sums of round {sums.round_number}, weighted by {sums.weighting!r:.40}; this is round "
            f"{round_number}, weighted by {weighting!r}"
        )
    numbers = range(1, len(family) + 1)
    for what in ("weights", "own_weights", "clients", "own_clients"):
        counts = getattr(sums, what)
        if len(counts) != len(family) or not all(_is_whole(n) and n >= 0 for n in counts):
            raise UpdateError(
                f"sums: {what} are {str(counts)[:80]}, expected {len(family)} whole numbers of 0 "
                "or more"
            )
    _check_own_weights(sums, family)
    _check_heads(sums)
    trained = [k for k in numbers if sums.weights[k - 1]]
    held = {name for k in trained for name in family.layout(k)}
    shared = {n: info for n, info in family.global_layout.items() if n in held}
    _check_tensors("sums", "shared ", sums.shared, shared, wide=True)
    for k in numbers:
        names = family.own_names(k) if sums.own_weights[k - 1] else ()
        own = {name: family.layout(k)[name] for name in names}
        _check_tensors("sums", f"submodel {k}'s ", sums.own[k - 1], own, wide=True)


def _check_own_weights(sums: Sums, family: Family) -> None:
    """Refuse weights of own tensors that those who trained them cannot have.

    Who trains a submodel alone trains its own tensors too; where members are trained within, one
    or another may have been left out.
    """
    if len(sums.own) != len(family):
        raise UpdateError("sums: own sums are missing")
    numbers = range(1, len(family) + 1)
    for k in numbers:
        within = [j for j in numbers if j == k or k in family.members_within(j)]
        least = 0 if family.members_within(k) else sums.weights[k - 1]
        most = sum(sums.weights[j - 1] for j in within)
        if not least <= sums.own_weights[k - 1] <= most:
            raise UpdateError(
                f"sums: own_weights of submodel {k} are {sums.own_weights[k - 1]}, with these "
                f"weights {least} to {most}"
            )


def _check_heads(sums: Sums) -> None:
    """Refuse numbers of clients that cannot have gathered the weights of sums."""
    for what in ("", "own_"):
        weights, clients = getattr(sums, f"{what}weights"), getattr(sums, f"{what}clients")
        equal = sums.weighting == "equal"
        for weight, heads in zip(weights, clients, strict=True):
            if heads > weight or (weight and not heads) or (equal and heads != weight):
                raise UpdateError(
                    f"sums: {what}clients are {str(clients)[:80]}, which cannot have gathered "
                    f"{what}weights of {str(weights)[:80]}"
                )


def _check_tensors(
    who: str, what: str, tensors: Tensors, layout: Layout, *, wide: bool = False
) -> None:
    """Refuse tensors that are not those of a layout, or not finite.

    Args:
        who: whose they are.
        what: what they are, before their names.
        tensors: the tensors.
        layout: what is expected.
        wide: whether they are sums, which have wider types.
    """
    if not isinstance(tensors, Mapping):
        raise UpdateError(f"{who}: brings a {type(tensors).__name__}, not tensors by name")
    if tensors.keys() != layout.keys():
        raise UpdateError(f"{who}: {what}{_differing_names(tensors, layout)}")
    for name, info in layout.items():
        tensor = tensors[name]
        if not isinstance(tensor, Tensor):
            raise UpdateError(f"{who}: {what}{name} is a {type(tensor).__name__}, not a tensor")
        # First: some that are not dense have no shape to ask for.
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
            raise UpdateError(f"{who}: {what}{name} is not a dense tensor with values")
        if tensor.shape != info.shape:
            shape = tuple(tensor.shape)
            raise UpdateError(f"{who}: {what}{name} has shape {shape}, not {info.shape}")
        allowed = SUM_TYPES if wide and info.dtype.is_floating_point else (info.dtype,)
        if tensor.dtype not in allowed:
            expected = " or ".join(map(str, allowed))
            raise UpdateError(f"{who}: {what}{name} has dtype {tensor.dtype}, not {expected}")
    culprit = first_not_finite(tensors)
    if culprit is not None:
        raise UpdateError(f"{who}: {what}{culprit} has {NOT_FINITE}")


def _check_numbers(task: TrainTask) -> None:
    """Refuse what only equals a whole number: it would be a key, an index or a size later on."""
    if not _is_whole(task.client) or task.client < 0:
        raise UpdateError(f"a client's number is {task.client!r:.40}, expected 0 or more")
    for what, number in (("round", task.round_number), ("submodel", task.submodel)):
        if not _is_whole(number):
            raise UpdateError(
                f"client {task.client}: {what} is {number!r:.40}, expected a whole number"
            )


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _differing_names(trained: Tensors, layout: Mapping[str, object]) -> str:
    missing = [name for name in layout if name not in trained]
    extra = [str(name)[:80] for name in trained if name not in layout]
    parts = [
        f"{word} {', '.join(names[:3])}{' and more' if len(names) > 3 else ''}"
        for word, names in (("lacks", missing), ("has unexpected", extra))
        if names
    ]
    return " and ".join(parts)


def not_finite_in(state: ServerState) -> str | None:
    """Return which tensor of a state has an infinite or undefined value, if there is one.

    Finite updates can have an average that is not: two of 3e38 sum up to infinity.
    """
    own = (f"submodel {k}'s" for k in range(1, len(state.per_submodel) + 1))
    owners = ["shared", *own, "the step's memory"]
    groups = (state.shared, *state.per_submodel, state.memory)
    for owner, tensors in zip(owners, groups, strict=True):
        culprit = first_not_finite(tensors)
        if culprit is not None:
            return f"{owner} {culprit}"
    return None


@torch.no_grad()
def first_not_finite(tensors: Tensors) -> str | None:
    """Return the name of a tensor with an infinite or undefined value, if there is one.

    A finite product proves that every value is finite, in one quick pass; one that is not may only
    have overflowed, and then the tensors are looked at closely.
    """
    quantities = {name: t for name, t in tensors.items() if t.is_floating_point() and t.numel()}
    small: dict[torch.dtype, list[Tensor]] = {}
    probes: list[Tensor] = []
    for tensor in quantities.values():
        if tensor.numel() < SMALL:
            small.setdefault(tensor.dtype, []).append(tensor.reshape(-1))
        else:
            probes.append(_product(tensor.contiguous().view(-1)))
    probes += [_product(torch.cat(some)) for some in small.values()]
    if not probes or torch.isfinite(torch.stack([p.float() for p in probes])).all():
        return None
    return next((n for n, t in quantities.items() if not torch.isfinite(t).all()), None)


def _product(flat: Tensor) -> Tensor:
    """Return the product of a vector's two halves, in which each value is a factor.

    What is not finite has no finite product, not even with zero. Memory answers two places at once
    sooner than one. The value in the middle, if there is one, is in both halves.
    """
    half = (len(flat) + 1) // 2
    return torch.dot(flat[:half], flat[-half:])
