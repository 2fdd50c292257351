"""A family so small that its programs are made in seconds; they are made once for all tests."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nefl
from nefl.config.reading import config_from
from nefl.running.assembly import Setting, assemble

TINY = '''
"""Two submodels with all that a program has to spell out."""

from torch import nn

import nefl


class Tiny(nn.Module):
    def __init__(self, classes, channels):
        super().__init__()
        self.conv = nn.Conv2d(1, channels, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.branch = nn.Conv2d(channels, channels, 1)
        self.step_size = nefl.StepSize(1.0)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.pool(self.norm(self.conv(x)).relu())
        return self.fc(self.step_size(x, self.branch(x)).mean((2, 3)))


def family(classes, input_shape):
    specs = tuple(nefl.SubmodelSpec(((1.0,),), width) for width in (0.5, 1.0))
    return nefl.Family(lambda spec: Tiny(classes, round(8 * spec.stage_width(0))), specs)
'''

SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "model": {"name": "tiny_on_device:family", "method": "nefl-wd"},
    "data": {"name": "digits", "train": 150, "test": 100},
    "clients": {"count": 6, "per_round": 4},
    "local": {"epochs": 2, "batch_size": 8, "momentum": 0.9, "weight_decay": 1e-3},
    "schedule": {"name": "cosine", "warmup_steps": 3},
    "server": {"evaluate_every": 3, "checkpoint_every": 1},
    "engine": {"name": "serial", "device": "cpu"},
}


@pytest.fixture(scope="session", autouse=True)
def _tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "tiny_on_device.py").write_text(TINY)
    sys.path.append(str(folder))
    yield
    sys.path.remove(str(folder))


@pytest.fixture
def tiny() -> dict[str, Any]:
    """Settings of a run with that family: 25 examples a client, so 3 batches and one of 1."""
    return {
        key: dict(value) if isinstance(value, dict) else value for key, value in SETTINGS.items()
    }


def on_device(settings: dict[str, Any], **engine: Any) -> dict[str, Any]:
    """Return settings of a run whose clients train in ExecuTorch."""
    return {**settings, "engine": {**settings["engine"], "client": "executorch", **engine}}


@pytest.fixture(scope="session")
def setting() -> Setting:
    """That run, put together; its programs are in the cache afterwards."""
    return assemble(config_from(on_device(SETTINGS)))


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with its exported programs; do not change it."""
    folder = tmp_path_factory.mktemp("programs")
    recipe = folder / "recipe.json"
    recipe.write_text(json.dumps(SETTINGS))
    nefl.export_trainable(recipe, folder / "out")
    return folder / "out"
