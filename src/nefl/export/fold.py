"""Turning a trained submodel into a plain network: no batch norms, no step sizes.

In evaluation a batch norm behind a convolution is a factor and a shift for each channel, and a step
size is a factor of its branch: both go into the weights of the layer before. What is used by more
than one layer, or follows nothing that could take a factor, stays as it is.
"""

import operator
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError
from torch.nn.modules.conv import _ConvNd

from nefl.models.decoder import FromHeads, ToHeads
from nefl.models.lora import LoraModel
from nefl.models.vit import HeadsToStream
from nefl.nesting.modules import BatchNorm, StaticBatchNorm, StepSize

FACTORABLE = (_ConvNd, nn.Linear, HeadsToStream, FromHeads, BatchNorm)
"""Modules whose output is multiplied when their weight and their bias are."""


@dataclass(frozen=True)
class Plain:
    """A plain network.

    Attributes:
        network: in evaluation mode; tensors keep the names they had in the trained module.
        norms_left: batch norms that could not be folded.
        steps_left: step sizes that could not be folded.
        reason: why nothing could be folded, where the module's code cannot be traced.
    """

    network: nn.Module
    norms_left: int
    steps_left: int
    reason: str = ""


class _Tracer(fx.Tracer):
    """Looks into every module but those that folding deals with and torch's own."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = isinstance(m, (StepSize, ToHeads, *FACTORABLE))
        return known or super().is_leaf_module(m, module_qualified_name)


def fold(module: nn.Module) -> Plain:
    """Fold norms and step sizes into the layers before them.

    The module itself is used up: its tensors become the network's. It may be on the meta device;
    then only names and shapes are made, for weights that are loaded afterwards.

    Static norms must have been measured.
    """
    module.eval()
    module.requires_grad_(False)
    if isinstance(module, LoraModel):
        return Plain(module.plain(), 0, 0)
    try:
        graph = _Tracer(param_shapes_constant=True).trace(module)
    except (TraceError, TypeError, AttributeError, RuntimeError, NameError) as error:
        # A user's model may branch on values; it is exported as it is.
        return Plain(module, *_left(module), reason=str(error).splitlines()[0])
    network = fx.GraphModule(module, graph)
    for node in list(graph.nodes):
        if isinstance(_module_of(network, node), BatchNorm):
            _fold_norm(network, node)
    for node in list(graph.nodes):
        if isinstance(_module_of(network, node), StepSize):
            _fold_step(network, node)
    graph.lint()
    network.recompile()
    network.delete_all_unused_submodules()
    return Plain(network.eval(), *_left(network))


def _left(module: nn.Module) -> tuple[int, int]:
    kinds = [type(child) for child in module.modules()]
    return (
        sum(issubclass(kind, BatchNorm) for kind in kinds),
        sum(issubclass(kind, StepSize) for kind in kinds),
    )


def _module_of(network: fx.GraphModule, node: object) -> nn.Module | None:
    if isinstance(node, fx.Node) and node.op == "call_module":
        return network.get_submodule(str(node.target))
    return None


def _alone(network: fx.GraphModule, node: object) -> nn.Module | None:
    """Return the module of a node if nothing else uses its output, nor the module itself."""
    module = _module_of(network, node)
    if module is None or not isinstance(node, fx.Node) or len(node.users) != 1:
        return None
    calls = sum(n.op == "call_module" and n.target == node.target for n in network.graph.nodes)
    return module if calls == 1 else None


def _fold_norm(network: fx.GraphModule, node: fx.Node) -> None:
    norm, before = _module_of(network, node), _alone(network, node.args[0])
    if not isinstance(norm, BatchNorm) or not isinstance(before, (_ConvNd, nn.Linear)):
        return
    if isinstance(before, _ConvNd) and before.transposed:
        return  # its output channels are the second axis
    statistics = _statistics(norm)
    if statistics is None:
        return
    mean, variance = statistics
    factor = torch.rsqrt(variance.double() + norm.eps)
    if norm.weight is not None:
        factor = factor * norm.weight.double()
    shift = -mean.double() * factor
    if norm.bias is not None:
        shift = shift + norm.bias.double()
    _multiply(before, factor, shift)
    _bypass(network, node, node.args[0])


def _statistics(norm: BatchNorm) -> tuple[Tensor, Tensor] | None:
    if isinstance(norm, StaticBatchNorm):
        if norm.measured is None and norm.weight.is_meta:
            return norm.weight, norm.weight  # only shapes are asked for
        return norm.measured
    if norm.running_mean is None or norm.running_var is None:
        return None
    return norm.running_mean, norm.running_var


def _fold_step(network: fx.GraphModule, node: fx.Node) -> None:
    step = _module_of(network, node)
    if not isinstance(step, StepSize) or len(node.args) != 2:
        return
    stream, branch = node.args
    learned = step.value is not None
    if learned or step.initial != 1:
        before = _alone(network, branch)
        if not isinstance(before, FACTORABLE):
            return
        value = step.value if step.value is not None else torch.tensor(step.initial)
        _multiply(before, value.to(before.weight.device).double())
    with network.graph.inserting_before(node):
        total = network.graph.call_function(operator.add, (stream, branch))
    _bypass(network, node, total)


def _bypass(network: fx.GraphModule, node: fx.Node, instead: object) -> None:
    assert isinstance(instead, fx.Node)  # noqa: S101 -- a module's input is always a node
    node.replace_all_uses_with(instead)
    network.graph.erase_node(node)


def _multiply(module: nn.Module, factor: Tensor, shift: Tensor | None = None) -> None:
    """Let a layer give `factor * output + shift`; a factor for all, or one for each channel."""
    weight, bias = module.weight, getattr(module, "bias", None)
    assert isinstance(weight, Tensor)  # noqa: S101
    by_row = factor.reshape(-1, *[1] * (weight.ndim - 1)) if factor.ndim else factor
    module.weight = nn.Parameter((weight.double() * by_row).to(weight.dtype), requires_grad=False)
    if bias is None and shift is None:
        return
    total = bias.double() * factor if isinstance(bias, Tensor) else 0.0
    total = total + shift if shift is not None else total
    assert isinstance(total, Tensor)  # noqa: S101
    module.bias = nn.Parameter(total.to(weight.dtype), requires_grad=False)
