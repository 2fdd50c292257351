"""Run folders written by hand, so that every case can be had in no time."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from nefl.config import RunConfig
from nefl.config.reading import config_from, with_settings
from nefl.data.partition import Partition
from nefl.measured import MeasuredBy
from nefl.nesting.signature import Signature


class MakeRun(Protocol):
    def __call__(
        self,
        name: str,
        scores: Sequence[Sequence[float]] = (),
        *,
        log: Sequence[dict[str, Any] | str] = (),
        settings: dict[str, Any] | None = None,
        metric: MeasuredBy | None = None,
    ) -> Path: ...


PERPLEXITY = MeasuredBy("perplexity", "down")
TEXT = {
    "data.name": "stdlib",
    "model.name": "decoder_tiny",
    "model.method": "nefl-w",
}
"""Settings of a run that foretells tokens."""


def facts_of(metric: MeasuredBy) -> dict[str, Any]:
    """Return what a run that foretells tokens notes of itself."""
    accuracy = MeasuredBy("accuracy", "up", percent=True)
    return {
        "class_names": [],
        "signature": Signature((16,), 64, tokens=64, each_token=True).to_dict(),
        "kind": "next-token",
        "metrics": [asdict(metric), asdict(accuracy)],
        "train_examples": 100,
        "test_examples": 20,
    }


def round_line(
    number: int, scores: Sequence[float] = (), metric: str = "accuracy", **more: Any
) -> dict[str, Any]:
    line: dict[str, Any] = {
        "event": "round",
        "round": number,
        "attempt": 0,
        "tasks": 2,
        "trained": {"1": 1, "2": 1},
        "loss": 2.0 / number,
        "bytes_down": 1000,
        "bytes_up": 900,
        "failures": [],
        "seconds": 1.0,
        "wall_seconds": 1.5,
        "simulated": None,
    }
    return line | ({"metrics": {metric: list(scores)}} if scores else {}) | more


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Write a run's folder: a round for each list of scores, or the lines of a log.

    It notes what it was made of if a metric is given, as one that foretells tokens.
    """

    def make(
        name: str,
        scores: Sequence[Sequence[float]] = (),
        *,
        log: Sequence[dict[str, Any] | str] = (),
        settings: dict[str, Any] | None = None,
        metric: MeasuredBy | None = None,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        plain = RunConfig().to_dict() | {"rounds": max(1, len(scores))}
        plain["clients"] |= {"count": 4, "per_round": 2}
        config = config_from(with_settings(plain, (TEXT if metric else {}) | (settings or {})))
        called = metric.name if metric else "accuracy"
        (folder / "config.json").write_text(json.dumps(config.to_dict()))
        lines = list(log) or [
            {"event": "start", "round": 0, "seed": config.seed, "torch": "2.13.0"},
            *(round_line(n, each, called) for n, each in enumerate(scores, start=1)),
        ]
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        (folder / "metrics.jsonl").write_text("".join(f"{text}\n" for text in texts))
        if metric is not None:
            (folder / "facts.json").write_text(json.dumps(facts_of(metric)))
        sizes = np.array([0, 10, 30, 60, 100])
        Partition(np.arange(100), sizes).save(folder / "partition.safetensors")
        return folder

    return make
