"""From pictures to named answers, with any file that `nefl export` wrote."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from time import perf_counter

import torch
from torch import Tensor

from nefl.artifacts.card import Card
from nefl.elastic.budget import Budget
from nefl.elastic.file import is_elastic, load
from nefl.elastic.inputs import decode_picture, input_transform, is_large
from nefl.elastic.model import ElasticModel
from nefl.elastic.select import choose
from nefl.errors import ConfigError, RunError
from nefl.export.formats import open_model, recognise
from nefl.export.runner import Runner, try_out

TOP = 5
"""Classes in an answer, the likeliest first."""


@dataclass(frozen=True)
class Prediction:
    """The answer for one picture.

    Attributes:
        name: the likeliest class.
        classes: the likeliest classes and their probabilities, likeliest first.
        submodel: the number of the submodel that answered.
        fits: whether it keeps to the budget that was asked for.
        latency: seconds that the network took.
    """

    name: str
    classes: tuple[tuple[str, float], ...]
    submodel: int
    fits: bool
    latency: float


class Predictor:
    """Answers for one file: an elastic one, or a single submodel in its own runtime.

    Args:
        path: the file.

    Raises:
        NeflError: if the file or its runtime cannot be used.
    """

    def __init__(self, path: str | Path) -> None:
        self._elastic: ElasticModel | None = None
        self._runner: Runner | None = None
        self._lock = Lock()  # not every runtime lets two threads into one network
        place = Path(path)
        if recognise(place) == "safetensors" and is_elastic(place):
            self._elastic = ElasticModel(load(place))
            self.card: Card = self._elastic.trained.card
            for number in range(1, len(self._elastic.trained) + 1):
                try_out(place, self.card, partial(self._elastic, submodel=number))
            self._elastic.measure()
        else:
            self._runner = open_model(place)
            self.card = self._runner.card
        self._transform = input_transform(self.card)

    @property
    def latencies(self) -> list[float | None]:
        """Measured seconds of each submodel for one image; None where it was not measured."""
        if self._elastic is None:
            return [None]
        return [cost.latency for cost in self._elastic.costs]

    def is_large(self, picture: bytes, where: str = "the picture") -> bool:
        """Whether a picture should wait for its turn before it is unpacked.

        Raises:
            DataError: if it is no picture, or too large altogether.
        """
        return is_large(picture, where, self.card)

    def __call__(
        self,
        picture: bytes,
        where: str = "the picture",
        *,
        submodel: int | None = None,
        budget: Budget | None = None,
    ) -> Prediction:
        """Answer for a picture.

        Args:
            picture: an encoded image.
            where: its name, for messages.
            submodel: which one answers, from 1; or
            budget: what the answer may cost; the largest submodel within it answers.

        Raises:
            DataError: if it is no picture that can be read.
            ConfigError: if there is no such submodel.
            RunError: if the network's answer is not finite.
        """
        number, fits = self._pick(submodel, budget)
        inputs = self._transform(decode_picture(picture, where, self.card)[None])
        with self._lock:
            started = perf_counter()
            logits = self._logits(inputs, number)
            latency = perf_counter() - started
        if not bool(logits.isfinite().all()):
            raise RunError(
                f"{where}: submodel {number} answers with numbers that are not finite; export it "
                "again, from another checkpoint"
            )
        shares = logits[0].double().softmax(0)
        best = shares.topk(min(TOP, len(shares)))
        named = tuple(
            (self.card.class_names[place], float(share))
            for place, share in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        )
        return Prediction(named[0][0], named, number, fits, latency)

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

    def _logits(self, inputs: Tensor, number: int) -> Tensor:
        if self._elastic is not None:
            with torch.inference_mode():
                return self._elastic(inputs, number)  # type: ignore[no-any-return]
        assert self._runner is not None  # noqa: S101 -- one of the two is there
        return self._runner(inputs)
