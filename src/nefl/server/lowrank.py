"""Averages for adapters, whose two factors mean something only as a product.

The mean of B times the mean of A is not the mean of B·A: averaging factors by coverage, or padded
with zeros, errs in the products. The mean of products is exact, and a singular value decomposition
brings it back to factors; the leading r of them are the nearest adapter of rank r, so the result
nests. Whatever is no factor of an adapter is averaged by coverage.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from nefl.nesting.adapters import Factors, adapters_of
from nefl.nesting.corners import corner
from nefl.nesting.spec import Family
from nefl.server.aggregate import Aggregate, Weighting
from nefl.state import ClientUpdate, ServerState, Tensors

LEAST = 1e-12
"""The norm that an adapter of zeros counts with: where all are zero, all count alike."""


class _OfFactors(ABC):
    """What both averages share: checks and all other tensors are those of the plain mean."""

    def __init__(
        self, state: ServerState, family: Family, *, weighting: Weighting = "equal"
    ) -> None:
        self._state = state
        self._pairs = adapters_of(family)
        self._by_examples = weighting == "examples"
        self._rest = Aggregate(state, family, weighting=weighting)

    @torch.no_grad()
    def add(self, update: ClientUpdate) -> None:
        """Count an update, or refuse it and leave everything as it was.

        Raises:
            UpdateError: naming the client, the tensor and the reason.
        """
        self._rest.add(update)
        self._take(update.trained, float(update.examples) if self._by_examples else 1.0)

    @torch.no_grad()
    def finish(self) -> ServerState:
        """Return the state after the round."""
        after = self._rest.finish()
        return replace(after, shared={**after.shared, **self._averaged()})

    @abstractmethod
    def _take(self, trained: Tensors, weight: float) -> None:
        """Take the factors of an update that counts so much."""

    @abstractmethod
    def _averaged(self) -> dict[str, Tensor]:
        """Return the factors after the round."""


class PaddedAverage(_OfFactors):
    """HetLoRA's average: factors padded with zeros, each client weighted by its products' norm.

    Cho et al., "Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models"
    (EMNLP 2024). What no client of the round holds stays as it was.
    """

    def __init__(
        self, state: ServerState, family: Family, *, weighting: Weighting = "equal"
    ) -> None:
        super().__init__(state, family, weighting=weighting)
        self._sums: dict[str, Tensor] = {}
        self._held: dict[str, Tensor] = {}
        self._weight = 0.0

    def _take(self, trained: Tensors, weight: float) -> None:
        weight *= max(LEAST, _norm(trained, self._pairs))
        self._weight += weight
        for name in (n for pair in self._pairs for n in (pair.a, pair.b) if n in trained):
            like = self._state.shared[name]
            total = self._sums.setdefault(name, torch.zeros_like(like, dtype=torch.float64))
            held = self._held.setdefault(name, torch.zeros_like(like, dtype=torch.bool))
            box = corner(trained[name].shape)
            total[box].add_(trained[name].to(total.device), alpha=weight)
            held[box] = True

    def _averaged(self) -> dict[str, Tensor]:
        new = {}
        for name, total in self._sums.items():
            old = self._state.shared[name]
            new[name] = torch.where(self._held[name], total / self._weight, old).to(old.dtype)
        return new


@dataclass
class _Products:
    """The adapters of one linear map, one below the other: the sum of all is one product."""

    b: list[Tensor] = field(default_factory=list)
    a: list[Tensor] = field(default_factory=list)
    weight: float = 0.0


class ProductAverage(_OfFactors):
    """The mean of the products B·A, and its leading singular vectors as new factors.

    FlexLoRA's: Bai et al., "Federated Fine-tuning of Large Language Models under Heterogeneous
    Tasks and Client Resources" (NeurIPS 2024). Of a linear map, the clients count that have an
    adapter there. Beyond the rank of the mean, A stays as it was and B is zero.
    """

    def __init__(
        self, state: ServerState, family: Family, *, weighting: Weighting = "equal"
    ) -> None:
        super().__init__(state, family, weighting=weighting)
        self._products = {pair: _Products() for pair in self._pairs}

    def _take(self, trained: Tensors, weight: float) -> None:
        for pair, products in self._products.items():
            if pair.a in trained:
                products.b.append(trained[pair.b].to(torch.float64, copy=True))
                products.a.append(trained[pair.a].to(torch.float64, copy=True) * weight)
                products.weight += weight

    def _averaged(self) -> dict[str, Tensor]:
        new: dict[str, Tensor] = {}
        for pair, products in self._products.items():
            if products.weight:
                a, b = self._state.shared[pair.a], self._state.shared[pair.b]
                left = torch.cat(products.b, dim=1)
                right = torch.cat(products.a) / products.weight
                new[pair.b], new[pair.a] = refactored(left, right, b, a)
        return new


def refactored(left: Tensor, right: Tensor, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of the nearest product of so small a rank, the strongest first.

    Args:
        left: [out, many], in float64.
        right: [many, in]; the product is `left · right`.
        b: B as it was, [out, rank]: for its shape.
        a: A as it was, [rank, in]: its rows stay where the product has no such rank.
    """
    if left.shape[1] < min(left.shape[0], right.shape[1]):
        # Many times smaller than the product itself, which is never made.
        (q_left, r_left), (q_right, r_right) = torch.linalg.qr(left), torch.linalg.qr(right.T)
        u, strengths, v = torch.linalg.svd(r_left @ r_right.T, full_matrices=False)
        u, v = q_left @ u, v @ q_right.T
    else:
        u, strengths, v = torch.linalg.svd(left @ right, full_matrices=False)
    least = float(strengths[0]) * max(*u.shape, *v.shape) * torch.finfo(torch.float64).eps
    rank = min(a.shape[0], int((strengths > least).sum()))
    # A pair of singular vectors may be turned round; so that it is always the same one.
    sign = torch.gather(u, 0, u.abs().argmax(0, keepdim=True)).sign()
    new_b, new_a = torch.zeros_like(b), a.clone()
    new_b[:, :rank] = (u * sign * strengths)[:, :rank].to(b)
    new_a[:rank] = (v * sign.T)[:rank].to(a)
    return new_b, new_a


def _norm(trained: Tensors, pairs: tuple[Factors, ...]) -> float:
    """Return the Frobenius norm of all products of an update together."""
    total = 0.0
    for pair in pairs:
        if pair.a in trained:
            a, b = (trained[name].to(torch.float64) for name in (pair.a, pair.b))
            # |BA|² = tr((BᵀB)(AAᵀ)): of the size of the rank, not of the product.
            total += float(((b.T @ b) * (a @ a.T)).sum())
    return math.sqrt(max(0.0, total))
