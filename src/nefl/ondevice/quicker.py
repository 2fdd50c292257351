"""A graph with its backward pass, said so that ExecuTorch's kernels are quick.

What autograd writes down is right, and in three places slow there: it turns the patches of a
convolution, which are the largest tensors of all; where a ReLU let nothing pass it spreads one zero
over a tensor, value by value; and it spreads means over the last axis before they are added, which
an addition does by itself. The same numbers come out, but for the order in which a product of
matrices adds up.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.node import map_arg

aten = torch.ops.aten

Graph = Any
Node = Any
"""Those of torch.fx, whose arguments may be anything."""

SPREADING = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor)
"""What spreads its second argument over the last axis by itself."""


def quicken(graph: Graph) -> None:
    """Rewrite a graph in place; nodes that nothing needs any more are gone afterwards."""
    for rewrite in (_turn_the_smaller, _numbers_of_full_size, _divide_first, _spread_by_itself):
        for node in list(graph.nodes):
            rewrite(graph, node)
    graph.eliminate_dead_code()
    graph.lint()


def _turn_the_smaller(graph: Graph, node: Node) -> None:
    """A · Bᵀ is (B · Aᵀ)ᵀ: of two factors the one with fewer rows is turned."""
    if not _calls(node, aten.mm.default, aten.bmm.default) or not _turns(node.args[1]):
        return
    first, second = node.args[0], node.args[1].args[0]
    if not _more_rows(second, first):
        return
    with graph.inserting_before(node):
        across = _call(graph, aten.permute.default, first, _turned(first))
        product = _call(graph, node.target, second, across)
        back = _call(graph, aten.permute.default, product, _turned(first))
    _replace(graph, node, back)


def _numbers_of_full_size(graph: Graph, node: Node) -> None:
    """Choose between two tensors of one size: for these there is a quick kernel."""
    if not _calls(node, aten.where.self) or not _shape(node):
        return
    for place in (1, 2):
        number, other = node.args[place], node.args[3 - place]
        sizes = {_shape(other), _shape(node.args[0])}
        if _calls(number, aten.scalar_tensor.default) and sizes == {_shape(node)}:
            with graph.inserting_before(node):
                full = _call(graph, aten.full_like.default, other, number.args[0])
            node.update_arg(place, full)


def _divide_first(graph: Graph, node: Node) -> None:
    """The gradient of a mean is divided while it is small, and spread then."""
    if not _calls(node, aten.div.Scalar) or not _spreads_last(node.args[0]):
        return
    spread, by = node.args
    with graph.inserting_before(node):
        small = _call(graph, aten.div.Scalar, spread.args[0], by)
        back = _call(graph, aten.expand.default, small, spread.args[1])
    _replace(graph, node, back)


def _spread_by_itself(_graph: Graph, node: Node) -> None:
    """What is added or multiplied need not be spread before."""
    if not _calls(node, *SPREADING):
        return
    first, second = node.args
    if node.target is not aten.sub.Tensor and _spreads_last(first):
        first, second = second, first
    if _spreads_last(second) and hasattr(first, "meta") and _shape(first) == _shape(node):
        node.args = (first, second.args[0])


def _spreads_last(node: Node) -> bool:
    """Whether a node spreads a tensor along its last axis, and along no other."""
    if not _calls(node, aten.expand.default):
        return False
    small, large = _shape(node.args[0]), _shape(node)
    return len(small) == len(large) > 1 and small[:-1] == large[:-1] and small[-1] == "1"


def _turns(node: Node) -> bool:
    """Whether a node turns matrices."""
    return _calls(node, aten.permute.default) and list(node.args[1]) == _turned(node)


def _turned(node: Node) -> list[int]:
    axes = list(range(len(_shape(node))))
    return [*axes[:-2], axes[-1], axes[-2]]


def _more_rows(node: Node, other: Node) -> bool:
    rows, others = (_shape(one)[-2] for one in (node, other))
    return rows.isdecimal() and others.isdecimal() and int(rows) > int(others)


def _calls(node: Node, *targets: object) -> bool:
    return getattr(node, "target", None) in targets


def _shape(node: Node) -> tuple[str, ...]:
    """Return sizes as text: to compare that of a batch, which is open, with a number fixes it."""
    return tuple(str(size) for size in node.meta["val"].shape)


def _call(graph: Graph, target: Callable[..., Any], *args: Any) -> Node:
    made = graph.call_function(target, args)
    made.meta["val"] = target(*map_arg(args, lambda node: node.meta["val"]))
    return made


def _replace(graph: Graph, node: Node, by: Node) -> None:
    node.replace_all_uses_with(by)
    graph.erase_node(node)
