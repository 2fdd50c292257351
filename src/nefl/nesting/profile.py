"""What each submodel costs: parameters, MACs, memory to train it, bytes to send it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from nefl.errors import ConfigError
from nefl.nesting.frozen import frozen_names
from nefl.nesting.modules import StepSize
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family, SubmodelSpec, build_on_meta

_CONVOLUTION = torch.ops.aten.convolution

GRADIENTS_TOO = 2
"""A number for each weight while it is trained: itself, and its gradient."""

PASSES = 3
"""Forward passes that a training step costs: one forward, and about two backward."""


def count_params(module: nn.Module) -> int:
    """Count the parameters without step sizes and without what is frozen."""
    every = sum(parameter.numel() for parameter in module.parameters())
    return every - count_steps(module) - count_frozen(module)


def count_frozen(module: nn.Module) -> int:
    """Count the frozen parameters."""
    frozen = frozen_names(module)
    return sum(p.numel() for name, p in module.named_parameters() if name in frozen)


def count_steps(module: nn.Module) -> int:
    """Count the learned step sizes."""
    return sum(child.value is not None for child in module.modules() if isinstance(child, StepSize))


def profile_family(
    family: Family, signature: Signature, batch_size: int, optimiser_copies: int = 0
) -> list[SubmodelProfile]:
    """Cost out every submodel, without storage and without computing anything.

    Args:
        family: the family.
        signature: what the models take.
        batch_size: the batch that the training memory is for.
        optimiser_copies: numbers that the optimiser keeps for each weight: 0 for plain SGD, 1
            with momentum, 2 for Adam.

    Raises:
        ConfigError: if the model cannot take inputs of that shape.
    """
    full = family.specs[-1]
    full_params = count_params(family.meta_module(len(family)))
    profiles = []
    for index, spec in enumerate(family.specs, start=1):
        module = family.meta_module(index)
        macs, macs_total = count_macs(module, signature)
        params = count_params(module)
        activations = batch_memory(module, signature, batch_size)
        payload = sum(info.nbytes for info in family.layout(index).values())
        gamma, gamma_d = params / full_params, _depth_ratio(family, spec, full, full_params)
        uniform = not isinstance(spec.width, tuple) and spec.inner_width is None
        profiles.append(
            SubmodelProfile(
                index=index,
                gamma_w=round(spec.stage_width(0) ** 2 if uniform else gamma / gamma_d, 9),
                gamma_d=round(gamma_d, 6),
                gamma=round(gamma, 6),
                width=spec.width,
                channels=stage_channels(module),
                blocks=spec.blocks,
                params=params,
                step_sizes=count_steps(module),
                macs=macs,
                macs_total=macs_total,
                train_macs=count_step_macs(module, signature),
                train_memory_bytes=weight_memory(module, optimiser_copies) + activations,
                payload_bytes=payload,
                activation_bytes=activations,
                frozen=count_frozen(module),
                down_bytes=payload,
                up_bytes=payload,
            )
        )
    return profiles


def _depth_ratio(family: Family, spec: SubmodelSpec, full: SubmodelSpec, full_params: int) -> float:
    if all(step > 0 for stage in spec.blocks for step in stage) and not spec.exits:
        return 1.0
    at_full_width = SubmodelSpec(spec.blocks, full.width, full.inner_width, spec.exits)
    return count_params(build_on_meta(family.build, at_full_width)) / full_params


def stage_channels(module: nn.Module) -> tuple[int, ...]:
    """Return the channels of each stage where the module tells them, else nothing."""
    channels = getattr(module, "stage_channels", ())
    return tuple(int(count) for count in channels)


def count_macs(module: nn.Module, signature: Signature) -> tuple[int, int]:
    """Return the MACs of one forward pass of one example: convolutions only, and all."""
    counter = _count(module, signature, every_exit=False)
    by_op = counter.get_flop_counts()["Global"]
    convolutions = sum(n for op, n in by_op.items() if op is _CONVOLUTION)
    return convolutions // 2, counter.get_total_flops() // 2


def count_step_macs(module: nn.Module, signature: Signature) -> int:
    """Return the MACs of a training step for one example, forward and backward.

    Over frozen weights nothing is computed for their own gradients: what is left is counted.
    """
    if not count_frozen(module):
        return PASSES * count_train_macs(module, signature)
    counter = FlopCounterMode(display=False)
    with _mode(module, training=True), counter:
        outputs = _forward(module, signature.example(1, "meta"), every_exit=False)
        torch.autograd.backward(outputs.sum())
    for parameter in module.parameters():
        parameter.grad = None
    return counter.get_total_flops() // 2


def count_train_macs(module: nn.Module, signature: Signature) -> int:
    """Return the MACs of the forward pass of a training step, for one example."""
    return int(_count(module, signature, every_exit=True).get_total_flops() // 2)


def _count(module: nn.Module, signature: Signature, *, every_exit: bool) -> FlopCounterMode:
    counter = FlopCounterMode(display=False)
    with _mode(module, training=False), torch.no_grad(), counter:
        _forward(module, signature.example(1, "meta"), every_exit=every_exit)
    return counter


def weight_memory(module: nn.Module, optimiser_copies: int = 0) -> int:
    """Return the bytes of weights, gradients, what an optimiser keeps of them, and buffers.

    Of frozen weights there are neither gradients nor anything that an optimiser keeps.
    """
    frozen = frozen_names(module)
    sizes = {name: p.numel() * p.element_size() for name, p in module.named_parameters()}
    given = sum(size for name, size in sizes.items() if name in frozen)
    trained = sum(sizes.values()) - given
    buffers = sum(b.numel() * b.element_size() for b in module.buffers())
    return (GRADIENTS_TOO + optimiser_copies) * trained + given + buffers


def batch_memory(module: nn.Module, signature: Signature, batch_size: int) -> int:
    """Return the bytes of a batch of inputs and of the activations that autograd keeps for it."""
    fixed = {_identity(t) for t in (*module.parameters(), *module.buffers())}
    batch = signature.example(batch_size, "meta")
    kept = {_identity(batch): batch}

    def keep(tensor: Tensor) -> Tensor:
        if (key := _identity(tensor)) not in fixed:
            kept[key] = tensor
        return tensor

    with _mode(module, training=True), torch.autograd.graph.saved_tensors_hooks(keep, _same):
        _forward(module, batch, every_exit=True)
    return sum(t.untyped_storage().nbytes() for t in kept.values())


def _identity(tensor: Tensor) -> int:
    # Meta tensors have no address; the storage object is what tells one from another.
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _forward(module: nn.Module, batch: Tensor, *, every_exit: bool) -> Tensor:
    # In training, early classifiers are computed too where a model has more than one.
    call = getattr(module, "forward_exits", module) if every_exit else module
    try:
        return call(batch)  # type: ignore[no-any-return]
    except (RuntimeError, ValueError) as error:
        shape = "x".join(map(str, batch.shape[1:]))
        raise ConfigError(f"input {shape}: the model cannot take it ({error})") from error


@contextmanager
def _mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    was = module.training
    module.train(training)
    try:
        yield
    finally:
        module.train(was)
