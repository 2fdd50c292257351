"""A graph that is said for quick kernels gives the same numbers."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.export.experimental import _export_forward_backward
from torch.fx.experimental.proxy_tensor import make_fx

from nefl.nesting.modules import StepSize
from nefl.ondevice.plain import Trained
from nefl.ondevice.quicker import quicken
from nefl.ondevice.runtime import read_graph

aten = torch.ops.aten


class Network(nn.Module):
    """Convolutions of both ways, a pool, a norm, a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.few = nn.Conv2d(3, 6, 3, padding=1, bias=False)  # 27 values in a patch, 64 places
        self.norm = nn.BatchNorm2d(6)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.many = nn.Conv2d(6, 6, 3, padding=1)  # 54 values, 16 places
        self.step = StepSize(0.7)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.pool(self.norm(self.few(x)).relu())
        logits: torch.Tensor = self.fc(self.step(x, self.many(x).relu()).mean((2, 3)))
        return logits


@pytest.fixture(scope="module")
def graphs() -> tuple[Any, Any]:
    """The graph forward and backward as torch writes it, and said again."""
    torch.manual_seed(0)
    network = Trained(Network(), nn.functional.cross_entropy).train()
    given = torch.randn(8, 3, 8, 8), torch.randint(5, (8,))
    plain, quick = (_export_forward_backward(read_graph(network, *given)) for _ in range(2))
    quicken(quick.graph)
    quick.graph_module.recompile()
    return plain, quick


@pytest.mark.parametrize("size", [8, 3])
def test_the_numbers_are_the_same_at_every_size_of_a_batch(
    graphs: tuple[Any, Any], size: int
) -> None:
    plain, quick = graphs
    parameters = [value for _, value in plain.named_parameters()]
    given = torch.randn(size, 3, 8, 8), torch.randint(5, (size,))
    wanted, found = (g.graph_module(*parameters, *given) for g in (plain, quick))
    assert len(found) == len(wanted) == 1 + 2 + len(parameters)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)
    assert all(gradient.detach().any() for gradient in found[3:])


def slow(graph: Any) -> set[str]:
    """Name what the runtime does slowly: large factors turned, numbers and last axes spread."""
    found = set()
    for node in graph.nodes:
        parts = [part for part in node.args if "val" in getattr(part, "meta", ())]
        shapes: list[Any] = [getattr(part.meta["val"], "shape", ()) for part in parts]
        if node.target in (aten.mm.default, aten.bmm.default):
            turned = parts[1].target is aten.permute.default
            if turned and str(shapes[0][-2]).isdecimal() and shapes[1][-1] > shapes[0][-2]:
                found.add("product")
        if node.target is aten.where.self and len(shapes[0]) == 4 and not all(map(len, shapes)):
            found.add("where")
        if node.target in (aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.div.Scalar):
            for part, shape in zip(parts, shapes, strict=True):
                if part.target is aten.expand.default and len(shape) == 4:
                    small = part.args[0].meta["val"].shape
                    if small[:-1] == shape[:-1] and small[-1] < shape[-1]:
                        found.add("expand")
    return found


def test_nothing_that_is_slow_is_left(graphs: tuple[Any, Any]) -> None:
    plain, quick = (each.graph for each in graphs)
    assert slow(plain) == {"product", "where", "expand"}
    assert slow(quick) == set()
    # And the size of a batch is as open as it was.
    (given,) = (node for node in quick.nodes if node.name == "inputs")
    assert not str(given.meta["val"].shape[0]).isdecimal()


def test_what_is_subtracted_from_stays_first() -> None:
    def both_ways(small: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = aten.expand.default(small, [2, 3])
        return wide - x, x - wide, wide + x

    given = torch.randn(2, 1), torch.randn(2, 3)
    module = make_fx(both_ways, tracing_mode="fake")(*given)
    quicken(module.graph)
    module.recompile()
    for found, wanted in zip(module(*given), both_ways(*given), strict=True):
        assert found.equal(wanted)
    assert sum(node.target is aten.expand.default for node in module.graph.nodes) == 1
