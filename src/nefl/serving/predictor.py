"""From things of a user's to answers, with any file that `nefl export` wrote."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from time import perf_counter

import torch
from torch import Tensor

from nefl.artifacts.card import Card
from nefl.asking.way import Answer, Wish
from nefl.asking.ways import way_of
from nefl.elastic.budget import Budget
from nefl.elastic.file import is_elastic, load
from nefl.elastic.model import ElasticModel
from nefl.elastic.select import choose
from nefl.errors import ConfigError, NeflError, RunError
from nefl.export.formats import open_model, recognise
from nefl.export.runner import Runner, try_out


@dataclass(frozen=True)
class Prediction:
    """The answers for one thing, or for several that were sent together.

    Attributes:
        answers: one for each.
        several: whether it was a list of things.
        submodel: the number of the submodel that answered.
        fits: whether it keeps to the budget that was asked for.
        latency: seconds that the network took.
    """

    answers: tuple[Answer, ...]
    several: bool
    submodel: int
    fits: bool
    latency: float


class Predictor:
    """Answers for one file: an elastic one, or a single submodel in its own runtime.

    Args:
        path: the file.
        model: the function that makes the family of a user's own model, for an elastic file of it.

    Raises:
        NeflError: if the file or its runtime cannot be used.
    """

    def __init__(self, path: str | Path, model: str | None = None) -> None:
        self._elastic: ElasticModel | None = None
        self._runner: Runner | None = None
        self._lock = Lock()  # not every runtime lets two threads into one network
        place = Path(path)
        if recognise(place) == "safetensors" and is_elastic(place):
            self._elastic = ElasticModel(load(place, model))
            self.card: Card = self._elastic.trained.card
            for number in range(1, len(self._elastic.trained) + 1):
                try_out(place, self.card, partial(self._elastic, submodel=number))
            self._elastic.measure()
        elif model is not None:
            raise ConfigError(f"{place}: holds one submodel; a model is named for elastic files")
        else:
            self._runner = open_model(place)
            self.card = self._runner.card
        try:
            self.way = way_of(self.card)
        except NeflError as error:
            raise RunError(f"{place}: {error}") from None

    @property
    def latencies(self) -> list[float | None]:
        """Measured seconds of each submodel for one example; None where it was not measured."""
        if self._elastic is None:
            return [None]
        return [cost.latency for cost in self._elastic.costs]

    def is_large(self, thing: bytes, where: str | None = None) -> bool:
        """Whether a thing should wait for its turn before it is unpacked.

        Raises:
            DataError: if it is none, or too large altogether.
        """
        return self.way.is_large(thing, where or self._thing)

    def __call__(
        self,
        thing: bytes,
        where: str | None = None,
        *,
        submodel: int | None = None,
        budget: Budget | None = None,
        wish: Wish | None = None,
        is_json: bool = False,
    ) -> Prediction:
        """Answer for a thing: a picture, a text, a row of a table, an array.

        Args:
            thing: its bytes.
            where: its name, for messages.
            submodel: which one answers, from 1; or
            budget: what the answer may cost; the largest submodel within it answers.
            wish: how the answer is wanted.
            is_json: whether the bytes are said to be JSON.

        Raises:
            DataError: if it cannot be read.
            ConfigError: if there is no such submodel.
            RunError: if the network's answer is not finite.
        """
        number, fits = self._pick(submodel, budget)
        where = where or self._thing
        seconds: list[float] = []

        def run(inputs: Tensor) -> Tensor:
            with self._lock:
                started = perf_counter()
                outputs = self._outputs(inputs, number)
                seconds.append(perf_counter() - started)
            if not bool(outputs.isfinite().all()):
                raise RunError(
                    f"{where}: submodel {number} answers with numbers that are not finite; export "
                    "it again, from another checkpoint"
                )
            return outputs

        found = self.way.ask(thing, where, run, wish or Wish(), is_json=is_json)
        return Prediction(found.each, found.several, number, fits, sum(seconds))

    @property
    def _thing(self) -> str:
        return f"the {self.way.noun}"

    def _pick(self, submodel: int | None, budget: Budget | None) -> tuple[int, bool]:
        numbers: Sequence[int] = [card.number for card in self.card.submodels]
        if submodel is not None and submodel not in numbers:
            raise ConfigError(f"submodel {submodel}: this file has {', '.join(map(str, numbers))}")
        if submodel is not None:
            return submodel, True
        if budget is None:
            return numbers[-1], True
        if self._elastic is None:
            raise ConfigError("this file holds one submodel: a budget needs an elastic file")
        choice = choose(self._elastic.costs, budget)
        return choice.submodel, choice.fits

    def _outputs(self, inputs: Tensor, number: int) -> Tensor:
        if self._elastic is not None:
            with torch.inference_mode():
                return self._elastic(inputs, number)  # type: ignore[no-any-return]
        assert self._runner is not None  # noqa: S101 -- one of the two is there
        return self._runner(inputs)
