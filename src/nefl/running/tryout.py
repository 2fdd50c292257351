"""Models, methods and metrics tried out before a run: what would fail in them fails here."""

from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from nefl.client.exits import HasExits
from nefl.client.member import Member
from nefl.client.objective import Learned
from nefl.client.training import Given, begin, end
from nefl.config import ModelConfig
from nefl.errors import ConfigError, NeflError
from nefl.methods import Method, method_of
from nefl.nesting.frozen import learned_state
from nefl.nesting.profile import profile_family
from nefl.nesting.rolling import check_rolling
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family
from nefl.nesting.zero_extension import check_family
from nefl.own_code import describe, own_code, place_of
from nefl.references import own_model
from nefl.state import TrainTask
from nefl.tasks.task import Task, arranged, rows_of

EXAMPLES = 2
"""How many are enough to try a model out; batch norms cannot take one alone."""


Layouts = Callable[[int], torch.memory_format]
"""How the inputs of a submodel, by its number, lie in memory in training."""


def try_out(
    model: ModelConfig,
    family: Family,
    learned: Learned,
    batch: Tensor,
    target: Tensor,
    layout: Layouts = lambda _: torch.contiguous_format,
) -> None:
    """Raise unless every submodel can make a step of training.

    A model of the user's own must also give outputs that fit, be costed, and nest in what it means.

    Args:
        model: the model's name, and the method that it is to be trained by.
        family: their family.
        learned: what it shall take and give, and the loss of that.
        batch: a few inputs.
        target: what is to be learned of them.
        layout: how inputs lie in memory: a `view` in a forward may take one way and not another.

    Raises:
        NeflError: naming the submodel and module at fault, or the method, and the remedy.
    """
    own, method = own_model(model), method_of(model)
    if method.objective.needs_exits:
        _check_exits(model, family)
    for number, spec in enumerate(family.specs, start=1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            module = family.build(spec)
            inputs = arranged(batch, layout(number))
            who = step = f"model.method {model.method}: a step of submodel {number}"
            if own:
                who = f"{own}: submodel {number}, {_class_of(module)}"
                step = f"{who}: a step of training"
                with own_code(f"{who}: forward of a batch {_shape(batch)}"):
                    _check_outputs(who, module, inputs, learned.signature)
            with own_code(step):
                _check_step(who, module, inputs, target, learned, method, family, number)
    if own:
        _check_family(own, family, learned.signature)
        if method.rolling:
            check_rolling(family, learned.signature)


def check_members(model: ModelConfig, family: Family, signature: Signature) -> None:
    """Raise unless members that a configuration lists of a built-in model nest in what they mean.

    Families by ratio need no such check: they are nefl's own.

    Raises:
        NestingError: naming the module at fault.
    """
    check_family(family, signature.noise(EXAMPLES))
    if method_of(model).rolling:
        check_rolling(family, signature)


def _check_family(name: str, family: Family, signature: Signature) -> None:
    _check_costs(name, family, signature)
    with own_code(f"{name}: the zero-extension check of its modules"):
        # Not on pictures: those that are all one colour would prove nothing.
        check_family(family, signature.noise(EXAMPLES))


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
    who: str,
    module: nn.Module,
    batch: Tensor,
    target: Tensor,
    learned: Learned,
    method: Method,
    family: Family,
    number: int,
) -> None:
    """Make a step of local training without an optimiser, with sets that are all zero."""
    objective = method.objective
    module.train()
    weights = {name: tensor.clone() for name, tensor in learned_state(module).items()}
    named = module.named_parameters(remove_duplicate=False)
    zeros = {n: torch.zeros_like(p) for n, p in named if n in weights}
    received, memory = ({s: dict(zeros) for s in o} for o in (objective.receives, objective.keeps))
    within = {
        m: Member(m, family.build(family.specs[m - 1]), family.own_names(m))
        for m in family.members_within(number)
    }
    for member in within.values():
        weights |= {name: tensor.clone() for name, tensor in member.own_tensors().items()}
    given = Given(weights, received, memory, within)
    local = begin(TrainTask(1, 0, number), module, learned, 1, given)
    value = objective.loss(local, batch, target)
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
    with torch.no_grad():
        objective.before_step(local)
    end(local, objective)


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


def try_metrics(task: Task) -> None:
    """See that what is to be measured can be, of outputs such as the model's.

    Raises:
        NeflError: naming the metric that does not fit the task.
    """
    rows = rows_of(task.visible(task.test), np.arange(min(EXAMPLES, task.test_examples)))
    target = task.make_target(rows)
    outputs = torch.zeros(len(target), *task.signature.output_shape)
    for metric in task.measured:
        with own_code(f"metric {metric.name}"):
            try:
                task.measure(metric, outputs, target)
            except ConfigError as error:
                raise ConfigError(f"metric {metric.name}: {error}") from None
