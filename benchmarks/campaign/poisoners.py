"""Poisoners: 2 of 10 clients lie, and what that costs under each average and limit.

A batch is one run: a way to lie, a defence, a seed. Liars wrap the engine or change the labels
they train on; nothing in the package knows of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nefl.config.reading import config_from
from nefl.engines.serial import SerialEngine
from nefl.errors import RunError
from nefl.nesting.corners import extract
from nefl.nesting.spec import Family, Role
from nefl.rounds import Observer, run_training
from nefl.running.assembly import Setting, assemble
from nefl.server.evaluate import mean_of
from nefl.state import ClientFailure, ClientUpdate, ServerState, TrainTask

LIARS = frozenset({0, 9})
"""One of the five clients of each submodel: liars hold no element by a majority."""

SEEDS = 3
ROUNDS = 6
UNLIMITED = 1e9

ATTACKS = {
    "none": "all ten are honest",
    "sign flip": "parameters go the opposite way, five times as far",
    "scaling": "parameters go ten times as far",
    "label flip": "trained on labels 9 - y",
    "statistics": "running means and variances go the opposite way, ten times as far",
    "example count": "trained on labels 9 - y, and claims 1,000,000,000 examples",
}

DEFENCES: dict[str, Mapping[str, Any]] = {
    "mean": {"weighting": "examples", "examples_limit": UNLIMITED},
    "mean, norm_limit 3": {"weighting": "examples", "examples_limit": 1.0, "norm_limit": 3.0},
    "mean, clips": {
        "weighting": "examples",
        "examples_limit": 1.0,
        "clip_update": 0.01,
        "clip_statistics": 0.5,
    },
    "median": {"average": "median"},
    "trimmed mean": {"average": "trimmed-mean", "trim": 0.2},
}

CELLS = [(attack, defence) for attack in ATTACKS for defence in DEFENCES]
BATCHES = SEEDS * len(CELLS)


def settings(defence: str, seed: int, rounds: int) -> dict[str, Any]:
    """Return a small run: digits, two submodels of a ResNet8, five clients each."""
    return {
        "seed": seed,
        "rounds": rounds,
        "model": {"name": "resnet8", "method": "nefl-wd", "ratios": [0.5, 1]},
        "data": {"name": "digits", "train": 600, "test": 300},
        "clients": {"count": 10, "per_round": 10, "capability": "fixed"},
        "local": {"epochs": 2, "batch_size": 16},
        "schedule": {"name": "constant"},
        "server": {"evaluate_every": rounds, **DEFENCES[defence]},
        "engine": {"name": "serial", "device": "cpu"},
    }


class Liars:
    """An engine in which some clients change their updates before they send them."""

    def __init__(self, inner: SerialEngine, family: Family, attack: str) -> None:
        self._inner, self._family, self._attack = inner, family, attack
        self.settle, self.evaluate, self.close = inner.settle, inner.evaluate, inner.close

    def train(
        self, state: ServerState, tasks: Sequence[TrainTask]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        """Yield honest updates as they are, and lies."""
        for result in self._inner.train(state, tasks):
            if isinstance(result, ClientUpdate) and result.task.client in LIARS:
                yield self._lie(result, state)
            else:
                yield result

    def _lie(self, update: ClientUpdate, state: ServerState) -> ClientUpdate:
        if self._attack == "example count":
            return replace(update, examples=10**9)
        ways: dict[str, tuple[Role, float]] = {
            "sign flip": ("parameter", -5.0),
            "scaling": ("parameter", 10.0),
            "statistics": ("statistic", -10.0),
        }
        if self._attack not in ways:
            return update
        role, way = ways[self._attack]
        start = extract(state, self._family, update.task.submodel)
        roles = self._family.roles(update.task.submodel)

        def lie(name: str, tensor: Tensor) -> Tensor:
            if roles[name] != role or not tensor.is_floating_point():
                return tensor
            moved = start[name] + way * (tensor - start[name])
            # A variance below 0 would show at once: it makes every output undefined.
            return moved.abs() if bool((tensor >= 0).all()) else moved

        return replace(update, trained={n: lie(n, t) for n, t in update.trained.items()})


class Newest(Observer):
    """An observer that keeps the weights of the last round that counted."""

    def __init__(self, state: ServerState) -> None:
        self.state = state

    def round_done(self, state: ServerState, *_: object) -> None:
        """Keep the weights."""
        self.state = state


def with_flipped_labels(setting: Setting) -> Setting:
    """Return a setting in which the liars' examples have the labels 9 - y."""
    task = setting.task
    labels = np.array(task.train_labels())
    for liar in LIARS:
        rows = setting.partition.client(liar)
        labels[rows] = task.classes - 1 - labels[rows]
    return replace(setting, task=replace(task, train={**task.train, "label": labels}))


def run_cell(attack: str, defence: str, seed: int, rounds: int) -> list[float]:
    """Train, and return the accuracy of each submodel, smallest first."""
    torch.set_num_threads(1)
    setting = assemble(config_from(settings(defence, seed, rounds)))
    if attack in ("label flip", "example count"):
        setting = with_flipped_labels(setting)
    engine = Liars(SerialEngine(setting.site(), setting.family), setting.family, attack)
    # As over nodes with data of their own: the server does not know what they were dealt.
    plan = replace(setting.plan, dealt=())
    newest = Newest(setting.initial_state())
    with suppress(RunError):  # liars that stop a run leave its last weights
        run_training(newest.state, plan, engine, [newest])
    evaluations = engine.evaluate(newest.state, range(1, len(setting.family) + 1))
    assert 0 <= mean_of(evaluations, "accuracy") <= 1
    return [evaluation.values["accuracy"] for evaluation in evaluations]


def run_batch(number: int) -> dict[str, Any]:
    """Do one run."""
    attack, defence = CELLS[number % len(CELLS)]
    seed = number // len(CELLS)
    accuracy = run_cell(attack, defence, seed, rounds=ROUNDS)
    return {"attack": attack, "defence": defence, "seed": seed, "accuracy": accuracy}


def table(entries: Sequence[dict[str, Any]]) -> str:
    """Return accuracies in percent, of the worst submodel and the average of the family."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    for entry in entries:
        found.setdefault((entry["attack"], entry["defence"]), []).append(entry["accuracy"])
    lines = [
        f"| 2 of 10 clients | {' | '.join(DEFENCES)} |",
        f"|---|{'---|' * len(DEFENCES)}",
    ]
    for attack, about in ATTACKS.items():
        cells = [_cell(found.get((attack, defence), [])) for defence in DEFENCES]
        lines.append(f"| {attack}: {about} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(accuracies: Sequence[Sequence[float]]) -> str:
    if not accuracies:
        return "–"
    worst = mean(min(each) for each in accuracies)
    average = mean(mean(each) for each in accuracies)
    return f"{100 * worst:.1f} / {100 * average:.1f}"
