"""Run folders written by hand, so that every case can be had in no time."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from nefl.config import RunConfig
from nefl.config_reading import config_from, with_settings
from nefl.data.partition import Partition


class MakeRun(Protocol):
    def __call__(
        self,
        name: str,
        accuracy: Sequence[Sequence[float]] = (),
        *,
        log: Sequence[dict[str, Any] | str] = (),
        settings: dict[str, Any] | None = None,
    ) -> Path: ...


def round_line(number: int, accuracy: Sequence[float] = (), **more: Any) -> dict[str, Any]:
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
    return line | ({"accuracy": list(accuracy)} if accuracy else {}) | more


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Write a run's folder: a round for each list of accuracies, or the lines of a log."""

    def make(
        name: str,
        accuracy: Sequence[Sequence[float]] = (),
        *,
        log: Sequence[dict[str, Any] | str] = (),
        settings: dict[str, Any] | None = None,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        plain = RunConfig().to_dict() | {"rounds": max(1, len(accuracy))}
        plain["clients"] |= {"count": 4, "per_round": 2}
        config = config_from(with_settings(plain, settings or {}))
        (folder / "config.json").write_text(json.dumps(config.to_dict()))
        lines = list(log) or [
            {"event": "start", "round": 0, "seed": config.seed, "torch": "2.13.0"},
            *(round_line(n, each) for n, each in enumerate(accuracy, start=1)),
        ]
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        (folder / "metrics.jsonl").write_text("".join(f"{text}\n" for text in texts))
        sizes = np.array([0, 10, 30, 60, 100])
        Partition(np.arange(100), sizes).save(folder / "partition.safetensors")
        return folder

    return make
