"""The zero-extension check: whether corners mean in a submodel what they mean in the full model.

Names and shapes are necessary, not sufficient. Of a fused attention matrix, the gates of an LSTM
or a concatenation the leading corner has the right shape and means something else. So a submodel's
tensors are put into the corners of global tensors that are zero everywhere else, and the full
model, run so, must compute what the submodel computes. Skipped branches are zero then and drop
out. Normalisations are replaced by their plain scale and shift in both, statistics of a longer
axis being another thing.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice, takewhile

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from nefl.errors import NestingError
from nefl.nesting.corners import corner
from nefl.nesting.frozen import frozen_names, learned_state
from nefl.nesting.modules import Exit, StepSize
from nefl.nesting.spec import Blocks, Family, SubmodelSpec, build_on_meta, holds

EXACT = 20_000_000
"""Parameters up to which the check computes in float64."""

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Differences that rounding explains, as a share of the largest output: nefl's own models, up to
125 million parameters, differ by 1e-13 and 2e-6 at most. What an early module does
wrong may fade behind fifty others; in float64 even a trace of it is no rounding.
"""

NORMS: tuple[type[nn.Module], ...] = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""Normalisations that the check replaces by their scale and shift; a family may name more."""

Example = Tensor | Sequence[Tensor]
"""What a model's `forward` takes: one tensor, or one for each argument."""


def check_family(family: Family, example: Example) -> None:
    """Raise unless every submodel computes what the full model does with its corners alone.

    Args:
        family: the family. One whose builder vouches for it (`vouched_for`) is not checked.
        example: a small input, of whatever the model takes.

    Raises:
        NestingError: naming the first module whose output departs, and the remedy.
    """
    if family.vouched_for:
        return
    _check_names(family)
    full = family.meta_module(len(family))
    exact = sum(parameter.numel() for parameter in full.parameters()) <= EXACT
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            _check_members(family, example, torch.float64 if exact else torch.float32)
        except NestingError:
            raise
        except Exception:  # a forward may insist on float32; if it fails there too, that counts
            if not exact:
                raise
            _check_members(family, example, torch.float32)


def _check_names(family: Family) -> None:
    """Refuse a builder that numbers blocks anew when some between them are skipped.

    It gives the same names whichever blocks are kept, as long as they are as many.
    """
    for number, spec in enumerate(family.specs, start=1):
        for leading in (_lead(spec.blocks, whole=False), _lead(spec.blocks, whole=True)):
            if _kept(leading) == _kept(spec.blocks):
                continue
            try:
                probe = build_on_meta(family.build, replace(spec, blocks=leading, inner_width=None))
            except Exception:  # noqa: S112 - a builder need not build what nobody trains
                continue
            if learned_state(probe).keys() == family.layout(number).keys():
                raise NestingError(
                    f"submodel {number} skips blocks between others, and its tensors have the "
                    "names of a model that keeps the first ones instead: number blocks by their "
                    "place in the full model (an OrderedDict or nn.ModuleDict; "
                    "nn.Sequential(*kept) renumbers)"
                )


def _kept(blocks: Blocks) -> list[list[bool]]:
    return [[bool(step) for step in stage] for stage in blocks]


def _lead(blocks: Blocks, *, whole: bool) -> Blocks:
    """Move the kept blocks to the front, of each stage or of the whole model."""
    if not whole:
        return tuple(tuple(sorted(stage, key=lambda step: not step)) for stage in blocks)
    steps = iter(sorted((step for stage in blocks for step in stage), key=lambda step: not step))
    return tuple(tuple(islice(steps, len(stage))) for stage in blocks)


def _check_members(family: Family, example: Example, dtype: torch.dtype) -> None:
    inputs = _as_inputs(example, dtype)
    whole = _build(family, family.specs[-1], dtype)
    for submodel, spec in enumerate(family.specs[:-1], start=1):
        torch.manual_seed(submodel)
        small = _build(family, spec, dtype)
        _draw_values(small)
        unfit = _extend(small, whole)
        with _as_plain_scales((small, whole), NORMS + family.norm_classes):
            found, extended = _run(small, inputs), _run(whole, inputs)
            ends = _without_twin(small, found, extended, unfit)
            culprit = _first_departure(found, extended, ends, TOLERANCES[dtype])
            if culprit is not None:
                again = _run(small, inputs, seed=1)[culprit]
                drawn = _departure(found[culprit], again) > TOLERANCES[dtype]
                share = _departure(found[culprit], extended[culprit])
                raise _refusal(f"{culprit or 'the model'}: submodel {submodel}", share, drawn=drawn)


def _build(family: Family, spec: SubmodelSpec, dtype: torch.dtype) -> nn.Module:
    module = family.build(spec).to(dtype).eval()
    # What is frozen is shared by all that the builder makes: nothing may be written there.
    tensors, frozen = module.state_dict(), frozen_names(module)
    own = {name: tensors[name].clone() for name in frozen}
    module.load_state_dict(own, strict=False, assign=True)
    return module


def _as_inputs(example: Example, dtype: torch.dtype) -> tuple[Tensor, ...]:
    tensors = (example,) if isinstance(example, Tensor) else tuple(example)
    return tuple(t.to(dtype) if t.is_floating_point() else t for t in tensors)


def _draw_values(module: nn.Module) -> None:
    """Draw all values anew: a tensor that starts at 0 would prove nothing.

    So large that a signal neither dies nor explodes through a hundred layers without norms: He's
    rule for weights, small shifts. What starts above 0 everywhere may be a scale or a variance, and
    stays near 1. What is frozen is given, and stays as it is.
    """
    for tensor in learned_state(module).values():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        if (tensor > 0).all():
            tensor.uniform_(0.5, 1.5)
        else:
            tensor.normal_(std=(2 / max(tensor[0].numel(), 1)) ** 0.5 if tensor.ndim > 1 else 0.1)
    for child in module.modules():
        if isinstance(child, StepSize) and child.value is not None:
            child.value.data.fill_(0.5)


def _extend(small: nn.Module, whole: nn.Module) -> frozenset[str]:
    """Put a submodel's tensors into the corners of zeros; return the names that do not fit."""
    into = whole.state_dict()
    for tensor in into.values():
        tensor.zero_()
    unfit = set()
    for name, tensor in small.state_dict().items():
        if name in into and holds(into[name].shape, tensor.shape):
            into[name][corner(tensor.shape)].copy_(tensor)
        else:
            unfit.add(name)
    steps = dict(small.named_modules())
    for name, child in whole.named_modules():
        mine = steps.get(name)
        if isinstance(child, StepSize) and isinstance(mine, StepSize):
            child.initial = mine.initial  # a constant step is no tensor, and a submodel's own
    return frozenset(unfit)


@contextmanager
def _as_plain_scales(
    modules: Sequence[nn.Module], norms: tuple[type[nn.Module], ...]
) -> Iterator[None]:
    """Let norms only scale and shift meanwhile, also where torch has a fused path around them."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with ExitStack() as stack:
            for child in (child for module in modules for child in module.modules()):
                if isinstance(child, norms):
                    handle = child.register_forward_hook(_plain_scale)
                    stack.callback(handle.remove)
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _plain_scale(norm: nn.Module, inputs: tuple[Tensor, ...], _output: Tensor) -> Tensor:
    x = inputs[0]
    for name, apply in (("weight", torch.mul), ("bias", torch.add)):
        tensor = getattr(norm, name, None)
        if tensor is not None:
            behind = x.ndim - 2 if isinstance(norm, _NormBase | nn.GroupNorm) else 0
            x = apply(x, tensor.reshape(*tensor.shape, *[1] * max(0, behind)))
    return x


def _run(module: nn.Module, inputs: tuple[Tensor, ...], seed: int = 0) -> dict[str, Tensor]:
    """Return what a model and the modules in it give out, in the order in which they finish.

    The output of the whole has the empty name and comes last.
    """
    torch.manual_seed(seed)  # what draws of its own accord, whatever the width, draws the same
    outputs: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for name, child in module.named_modules():
            handle = child.register_forward_hook(_noting(name, outputs))
            stack.callback(handle.remove)
        module(*inputs)
    return outputs


def _noting(name: str, outputs: dict[str, Tensor]) -> Callable[[object, object, object], None]:
    def note(_module: object, _inputs: object, output: object) -> None:
        tensor = _first_tensor(output)
        if tensor is not None:
            outputs.pop(name, None)  # of a module that runs several times the last counts
            outputs[name] = tensor.detach().clone()

    return note


def _first_tensor(output: object) -> Tensor | None:
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return next((t for t in map(_first_tensor, output) if t is not None), None)
    return None


def _without_twin(
    small: nn.Module,
    found: Mapping[str, Tensor],
    extended: Mapping[str, Tensor],
    unfit: frozenset[str],
) -> frozenset[str]:
    """Return the modules of a submodel that nothing in the full model can be compared with.

    Those with tensors of their own that the full model lacks, and early classifiers, which it
    passes by.
    """
    exits = {name for name, child in small.named_modules() if isinstance(child, Exit)}
    return frozenset(
        name
        for name in found
        if any(held.startswith(f"{name}.") for held in unfit)
        or (name in exits and name not in extended)
    )


def _first_departure(
    found: Mapping[str, Tensor],
    extended: Mapping[str, Tensor],
    ends: frozenset[str],
    tolerance: float,
) -> str | None:
    """Return the first module whose output departs, if what comes out at the end does.

    What counts is the end; the modules before it tell where it went wrong.
    """
    before = takewhile(lambda name: name not in ends, found)
    names = [name for name in before if name in extended]
    if not names or _departure(found[names[-1]], extended[names[-1]]) <= tolerance:
        return None
    return next(name for name in names if _departure(found[name], extended[name]) > tolerance)


def _refusal(where: str, share: float, *, drawn: bool) -> NestingError:
    """Return the error for a departure of so large a share; `drawn` if it is a matter of chance."""
    vouch = "or say why it is right so in Family(vouched_for=...)"
    if drawn:
        return NestingError(
            f"{where} gives another output there each time, in evaluation mode too, so corners "
            f"cannot be compared: draw only while self.training, {vouch}"
        )
    if not math.isfinite(share):
        return NestingError(
            f"{where} gives an output there that is not finite or does not fit the full model's, "
            "which was run with the submodel's corners and zeros elsewhere: divide by nothing that "
            "zeros make 0, take roots and logarithms of nothing that weights may make negative, "
            f"scale axes down instead of adding any, {vouch}"
        )
    return NestingError(
        f"{where} gives another output there than the full model does with the submodel's corners "
        f"and zeros elsewhere (they differ by {share:.2g} of its size), so corners mean different "
        "things: give heads, gates and fused projections axes of their own, pool before a linear "
        "layer instead of flattening, concatenate nothing that is scaled, and let no constant "
        "depend on the width; list other classes of normalisation in Family(norm_classes=...), "
        + vouch
    )


def _departure(small: Tensor, whole: Tensor) -> float:
    """Return the largest difference in the corner, as a share of the largest value."""
    if not holds(whole.shape, small.shape):
        return math.inf
    difference = float((whole[corner(small.shape)] - small).abs().max()) if small.numel() else 0.0
    size = max(float(small.abs().max()), 1e-12) if small.numel() else 1.0
    share = difference / size
    return share if math.isfinite(share) else math.inf
