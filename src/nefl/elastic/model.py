"""A model that changes its size between two calls."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn

from nefl.elastic.budget import Budget, Cost
from nefl.elastic.file import TrainedFamily
from nefl.elastic.select import MARGIN, Choice, choose

WARM_UP, REPEATS = 3, 15
"""Calls before latency is measured, and calls that it is the median of."""


class ElasticModel(nn.Module):
    """All submodels of a trained family, one of them in use.

    Every submodel is made at the start, most of it views of one copy of the weights; to switch
    is then to change one number, and may happen in another thread than predictions.

    Args:
        trained: the family.
        submodel: the one to use first; the full model if left out.
        views: as in `TrainedFamily.model`.
    """

    def __init__(
        self, trained: TrainedFamily, submodel: int | None = None, *, views: bool | None = None
    ) -> None:
        super().__init__()
        self.trained = trained
        self.models = nn.ModuleList(
            trained.model(k, views=views) for k in range(1, len(trained) + 1)
        )
        self._costs: Sequence[Cost] = trained.costs
        self._current = len(trained)
        self.switch(submodel if submodel is not None else len(trained))

    @property
    def current(self) -> int:
        """The number of the submodel in use."""
        return self._current

    @property
    def costs(self) -> Sequence[Cost]:
        """What each submodel costs, with latencies once they are measured."""
        return self._costs

    def forward(self, inputs: Tensor, submodel: int | None = None) -> Tensor:
        """Return the outputs of the submodel in use, or of another for this call alone."""
        number = self._current if submodel is None else submodel
        return self.models[self.trained.family.index(number)](inputs)  # type: ignore[no-any-return]

    def switch(self, submodel: int) -> None:
        """Use another submodel from the next call on.

        Raises:
            NestingError: if there is no such submodel.
        """
        self.trained.family.index(submodel)
        self._current = submodel

    def select(self, budget: Budget, margin: float = MARGIN) -> Choice:
        """Use the largest submodel that keeps to a budget, see `select.choose`.

        Raises:
            ConfigError: if a latency is limited and `measure` was never called.
        """
        choice = choose(self._costs, budget, self._current, margin)
        self._current = choice.submodel
        return choice

    def measure(self, batch_size: int = 1, repeats: int = REPEATS) -> list[float]:
        """Measure the latency of every submodel here and now, in seconds, and keep the table."""
        device = next(self.parameters()).device
        inputs = self.trained.card.signature.example(batch_size, device)

        def predict(model: nn.Module) -> None:
            model(inputs)
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # a call returns before a GPU is done

        found = [measure_latency(partial(predict, model), repeats) for model in self.models]
        self._costs = [
            replace(cost, latency=seconds) for cost, seconds in zip(self._costs, found, strict=True)
        ]
        return found


def measure_latency(predict: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median seconds of a call, after some that do not count."""
    times = []
    with torch.inference_mode():
        for turn in range(WARM_UP + repeats):
            started = perf_counter()
            predict()
            if turn >= WARM_UP:
                times.append(perf_counter() - started)
    return median(times)
