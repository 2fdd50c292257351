"""Scores by evidence: a short training of everything at once, and members that are cut out of it.

The warm-up trains the full model of a run with members drawn at random inside it, one in each local
step. Candidates are cut out of what came of it, their norms measured anew, and scored on examples
that were not trained on. Some dozens are scored; a Gaussian process over their shape and size says
what the others are worth, and where to look next.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nefl.artifacts.notes import stored_config
from nefl.config import ClientsConfig, DeviceConfig, RunConfig
from nefl.config.learning import LORA
from nefl.elastic.budget import Budget
from nefl.engines.tuning import tuned_process
from nefl.errors import ConfigError
from nefl.export.source import open_run
from nefl.fleet.candidates import Candidates, size_score
from nefl.fleet.chain import Group
from nefl.fleet.laboratory import WORST, Laboratory
from nefl.methods import method_of
from nefl.rounds import Observer
from nefl.running.assembly import with_absolute_paths
from nefl.running.lifecycle import resume, train
from nefl.seeds import Purpose, generator_for
from nefl.server.devices import Numbers

DRAWN = 12
"""Members that the warm-up trains inside the full model, which is one of them."""

TRIES = 48
"""Candidates that are scored; half of them to know the whole, the others where it is best."""

EXAMPLES = 2000
"""Test examples that scores rest on, half of which choose."""

LEAST = 1e-6
"""A score that is no higher than this counts as this: logarithms are taken."""

FAMILIES = {"both": "nefl-wd", "width": "nefl-w", "depth": "nefl-d"}
"""Whose submodels the warm-up trains, by what a method scales."""

Progress = Callable[[int, int], None]
"""Told how many candidates are scored, and how many will be."""

Evidence = tuple[list[int], list[float]]
"""Candidates that were scored, and what each is worth: the more the better."""


@dataclass(frozen=True)
class TrainedScore:
    """A score for candidates by what they do after a warm-up.

    Attributes:
        config: the run that the family is for.
        folder: where the warm-up is trained; one that is there is taken, or gone on with.
        rounds: how many rounds it has.
        tries: how many candidates are scored.
        examples: test examples that scores rest on, half of which choose.
        observers: told of the warm-up's rounds.
        progress: told after every candidate.
    """

    config: RunConfig
    folder: Path
    rounds: int
    tries: int = TRIES
    examples: int = EXAMPLES
    observers: Sequence[Observer] = ()
    progress: Progress = lambda _done, _total: None

    def __call__(self, candidates: Candidates, groups: Sequence[Group]) -> Numbers:
        """Return a score for each candidate, the higher the better.

        Args:
            candidates: all of them.
            groups: the kinds of device, each with what fits it.

        Raises:
            NeflError: if the warm-up cannot be trained, or the folder holds another run.
        """
        self._warm_up(candidates)
        source = open_run(self.folder, trust_code=True)
        with tuned_process(source.setting.config.engine.threads):
            laboratory = Laboratory(source, self.folder, Budget(), self.examples)
            found = self._score(laboratory, candidates, groups)
        expected, _ = _expected(candidates, found)
        worth = expected if laboratory.metric.better == "up" else np.exp(expected)
        return np.asarray(np.maximum(worth, LEAST))

    def _warm_up(self, candidates: Candidates) -> None:
        """Train the warm-up, go on with it, or leave it as it is."""
        wanted = with_absolute_paths(warm_up_config(self.config, candidates, self.rounds))
        if not (self.folder / "config.json").exists():
            train(wanted, self.folder, observers=self.observers)
            return
        there = stored_config(self.folder)
        data = replace(there.data, cache=wanted.data.cache)
        if replace(there, engine=wanted.engine, data=data) != wanted:
            raise ConfigError(
                f"{self.folder}: holds another run than the warm-up of this design; give another "
                "folder (--warm-up), or the settings and rounds that it was made with"
            )
        resume(self.folder, observers=self.observers, trust_code=True)

    def _score(
        self, laboratory: Laboratory, candidates: Candidates, groups: Sequence[Group]
    ) -> Evidence:
        total = min(self.tries, len(candidates))
        found: Evidence = ([], [])
        for index in spread(candidates, max(2, total // 2), self.config.seed):
            self._add(laboratory, candidates, index, found, total)
        while len(found[0]) < total:
            expected, unsure = _expected(candidates, found)
            hopeful = expected + unsure
            before = len(found[0])
            for group in groups:
                left = group.fits.copy()
                left[found[0]] = False
                if left.any() and len(found[0]) < total:
                    index = int(np.where(left, hopeful, -np.inf).argmax())
                    self._add(laboratory, candidates, index, found, total)
            if len(found[0]) == before:
                break
        return found

    def _add(
        self,
        laboratory: Laboratory,
        candidates: Candidates,
        index: int,
        found: Evidence,
        total: int,
    ) -> None:
        spec = candidates.spec(index)
        cost = laboratory.costed(spec)
        assert cost is not None  # noqa: S101 - there is no budget
        found[0].append(index)
        found[1].append(_worth(laboratory.score(spec, cost).score, laboratory.metric.better))
        self.progress(len(found[0]), total)


def warm_up_config(config: RunConfig, candidates: Candidates, rounds: int) -> RunConfig:
    """Return the run that trains members at random inside the full model.

    Every client can hold that; in each local step it trains one of the members, which are drawn
    over all sizes.

    Raises:
        ConfigError: if there are no candidates that could be cut out of such a run.
    """
    if config.model.name == LORA:
        raise ConfigError("adapters cannot be cut out of a warm-up; take --score size")
    if rounds < 1:
        raise ConfigError(f"rounds of the warm-up are {rounds}: give 1 or more")
    family = FAMILIES[method_of(config.model).scaling]
    drawn = sorted(
        spread(candidates, min(DRAWN, len(candidates)), config.seed),
        key=lambda index: candidates.costs.params[index],
    )
    model = replace(
        config.model,
        ratios=None,
        members=tuple(candidates.member(index) for index in drawn),
        method="within",
        method_options={"family": family, "which": "one"},
    )
    anything = DeviceConfig("any", memory=1e18, macs_per_second=1e18, bandwidth=1e18)
    clients = ClientsConfig(
        count=config.clients.count,
        per_round=config.clients.per_round,
        capability="devices",
        devices=(anything,),
        fluctuation=0.0,
    )
    server = replace(config.server, evaluate_every=rounds, checkpoint_every=max(1, rounds // 5))
    return replace(
        config,
        about=f"{config.model.name}, a warm-up for a design",
        rounds=rounds,
        model=model,
        clients=clients,
        server=server,
    )


def spread(candidates: Candidates, count: int, seed: int) -> list[int]:
    """Draw so many candidates, spread evenly over all sizes, the smallest and the full one too."""
    by_size = np.argsort(size_score(candidates), kind="stable")
    rng = generator_for(seed, Purpose.SEARCH, 1)
    inner: list[npt.NDArray[np.int64]] = np.array_split(by_size[1:-1], max(1, count - 2))
    drawn = [int(rng.choice(part)) for part in inner if len(part)]
    return list(dict.fromkeys((int(by_size[0]), *drawn, len(candidates) - 1)))


def _worth(metric: float, better: str) -> float:
    """Return what a metric is worth, the more the better; infinitely little if it is no number.

    Where less is better, that is the logarithm of its inverse: no expectation, however far from
    what was scored, then promises a metric below 0.
    """
    if abs(metric) >= WORST:
        return -math.inf
    return metric if better == "up" else -math.log(max(metric, LEAST))


def _expected(candidates: Candidates, found: Evidence) -> tuple[Numbers, Numbers]:
    """Return what each candidate can be expected to be worth, and how far that may be off.

    What is worth infinitely little counts as the least of the others.
    """
    # Half a second to load, for this alone.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    costs = candidates.costs
    traits = np.column_stack([candidates.place, np.log(costs.params), np.log(costs.macs)])
    traits = (traits - traits.mean(axis=0)) / np.maximum(traits.std(axis=0), LEAST)
    places, values = found[0], np.array(found[1])
    sound = np.isfinite(values)
    values[~sound] = values[sound].min() if sound.any() else 0.0
    kernel = ConstantKernel() * RBF(math.sqrt(traits.shape[1])) + WhiteKernel(0.1)
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(traits[places], values)
    mean, deviation = process.predict(traits, return_std=True)
    return mean, deviation
