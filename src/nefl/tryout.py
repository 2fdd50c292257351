"""A user's own model tried out before a run: what would fail in the first round fails here."""

from collections.abc import Callable
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from nefl.config import ModelConfig
from nefl.errors import ConfigError, NeflError
from nefl.losses import LOSSES, HasExits, Loss, TaskLoss
from nefl.methods import find_method
from nefl.nesting.profile import profile_family
from nefl.nesting.rolling import check_rolling
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family
from nefl.nesting.zero_extension import check_family
from nefl.own_code import describe, own_code, place_of

EXAMPLES = 2
"""How many are enough to try a model out; batch norms cannot take one alone."""


class Learned(Protocol):
    """What a model is to learn, as far as trying it out needs to know."""

    @property
    def signature(self) -> Signature:
        """What models take and give."""

    def loss_of(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss of a batch."""


def try_out(
    model: ModelConfig,
    family: Family,
    learned: Learned,
    batch: Tensor,
    target: Tensor,
    layout: Callable[[int], torch.memory_format] = lambda _: torch.contiguous_format,
) -> None:
    """Raise unless every submodel can be trained, measured and costed, and nests in what it means.

    Args:
        model: the model's name, and the method that it is to be trained by.
        family: the family that its function gave.
        learned: what it shall take and give, and the loss of that.
        batch: a few inputs.
        target: what is to be learned of them.
        layout: how the inputs of a submodel, by its number, lie in memory in training: a `view` in
            a forward may take one way and not another.

    Raises:
        NeflError: naming the submodel and module at fault, and the remedy.
    """
    name, method = model.name, find_method(model.method)
    if method.loss != "plain":
        _check_exits(model, family)
    for number, spec in enumerate(family.specs, start=1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            module = family.build(spec)
            who = f"{name}: submodel {number}, {_class_of(module)}"
            inputs = batch.contiguous(memory_format=layout(number))
            with own_code(f"{who}: forward of a batch {_shape(batch)}"):
                _check_outputs(who, module, inputs, learned.signature)
            with own_code(f"{who}: a step of training"):
                _check_step(who, module, inputs, target, LOSSES[method.loss], learned.loss_of)
    signature = learned.signature
    _check_costs(name, family, signature)
    with own_code(f"{name}: the zero-extension check of its modules"):
        # Not on pictures: those that are all one colour would prove nothing.
        check_family(family, signature.noise(EXAMPLES))
    if method.rolling:
        check_rolling(family, signature)


def _check_exits(model: ModelConfig, family: Family) -> None:
    if not hasattr(family.meta_module(len(family)), "forward_exits"):
        raise ConfigError(
            f"model.method {model.method}: trains all exits together, and {model.name} has no "
            "method forward_exits that returns the logits of each; give it one, or take another "
            "method"
        )


def _class_of(module: nn.Module) -> str:
    return f"{type(module).__name__} ({place_of(type(module))})"


def _check_outputs(who: str, module: nn.Module, batch: Tensor, taken: Signature) -> None:
    """Look at the logits in both modes, and at those of all exits where there are some."""
    for training in (False, True):
        module.train(training)
        mode = "in training" if training else "in evaluation"
        with torch.no_grad():
            output, last = _watched(module, batch)
            _check_logits(f"{who}: forward {mode}", output, len(batch), taken, last)
    if hasattr(module, "forward_exits"):
        with torch.no_grad():
            exits: object = cast("HasExits", module).forward_exits(batch)
        if not isinstance(exits, list | tuple) or not exits:
            raise ConfigError(
                f"{who}: forward_exits returned {_kind(exits)}; return a list of the logits of "
                "every classifier, the deepest last"
            )
        for number, logits in enumerate(exits, start=1):
            _check_logits(f"{who}: exit {number} of forward_exits", logits, len(batch), taken)


def _watched(module: nn.Module, batch: Tensor) -> tuple[object, str]:
    """Run a model; return its output, and the name of the layer in it that finished last."""
    finished: list[str] = []

    def note(name: str) -> Callable[[object, object, object], None]:
        return lambda _module, _inputs, _output: finished.append(name)

    leaves = [(n, m) for n, m in module.named_modules() if n and not any(m.children())]
    handles = [child.register_forward_hook(note(name)) for name, child in leaves]
    try:
        output = module(batch)
    finally:
        for handle in handles:
            handle.remove()
    return output, finished[-1] if finished else ""


def _check_logits(
    who: str, output: object, examples: int, taken: Signature, layer: str = ""
) -> None:
    tokens = taken.input_shape if taken.each_token else ()
    wanted = (examples, *tokens, taken.outputs)
    listed = f"[{', '.join(map(str, wanted))}]"
    if not isinstance(output, Tensor):
        raise ConfigError(
            f"{who} returned {_kind(output)}; return a tensor of logits {listed}, one for each "
            "class"
        )
    if tuple(output.shape) != wanted:
        by = f" (the last layer is {layer})" if layer else ""
        # More logits than classes would train, and then predict classes that have no name.
        raise ConfigError(
            f"{who} returned {_shape(output)} for {examples} examples of {taken.outputs} classes, "
            f"expected {listed}{by}; build the last layer with the `classes` that the function is "
            "given"
        )
    if not output.is_floating_point():
        raise ConfigError(
            f"{who} returned logits of {output.dtype}, expected floating-point numbers; return "
            "them before argmax or rounding"
        )


def _check_step(
    who: str, module: nn.Module, batch: Tensor, target: Tensor, loss: Loss, task_loss: TaskLoss
) -> None:
    module.train()
    value = loss(module, batch, target, task_loss)
    if not torch.isfinite(value):
        raise ConfigError(
            f"{who}: the loss of its first weights on the first examples is "
            f"{float(value.detach())}; look for divisions by 0, logarithms of it and first weights "
            "that are too large"
        )
    if not value.requires_grad:
        raise ConfigError(
            f"{who}: its logits depend on no parameter that is trained; do not detach them, nor "
            "compute them without gradients"
        )
    torch.autograd.backward(value)


def _check_costs(name: str, family: Family, signature: Signature) -> None:
    """See that costs can be counted: without values, as they are for any model."""
    try:
        with own_code(name):
            profile_family(family, signature, EXAMPLES)
    except NeflError as error:
        told = describe(error.__cause__) if error.__cause__ is not None else str(error)
        raise ConfigError(
            f"{name}: its costs cannot be counted, as forward fails on torch's meta device, where "
            f"tensors have shapes and no values ({told}); let no value decide what is computed "
            "(.item(), .tolist(), `if tensor:`), and make new tensors on the input's device"
        ) from error


def _shape(tensor: Tensor) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"


def _kind(value: object) -> str:
    if isinstance(value, list | tuple) and value:
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"{type(value).__name__}"
