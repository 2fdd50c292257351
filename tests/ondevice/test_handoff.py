"""A task as files: a client that knows only the contract does what torch does."""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nefl.client.training import local_steps, own_generator
from nefl.errors import ConfigError, UpdateError
from nefl.export.conformance import try_client
from nefl.nesting.corners import extract
from nefl.ondevice.handoff import read_update, write_task
from nefl.ondevice.programs import open_trainable
from nefl.running.assembly import Setting
from nefl.state import TrainTask
from tests.ondevice.conftest import SETTINGS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "device_client"
TASK = TrainTask(1, 2, 1)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(SETTINGS))
    return path


@pytest.mark.long
@pytest.mark.usefixtures("programs")
def test_the_example_client_conforms(recipe: Path) -> None:
    found = try_client(recipe, f"{sys.executable} {EXAMPLES / 'client.py'}", client=2)
    assert found.difference < 1e-6
    assert found.from_torch < 1e-6
    assert found.loss == pytest.approx(found.torch_loss, rel=1e-5)
    assert found.examples == 25


@pytest.mark.long
@pytest.mark.usefixtures("programs")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler: install g++")
def test_the_client_in_cpp_conforms(recipe: Path, tmp_path: Path) -> None:
    """Built as the page says, from what the ExecuTorch wheel has."""
    blocks = (ROOT / "docs" / "on-device.md").read_text().split("```\n")
    (build,) = (block for block in blocks if block.startswith("ET=$("))
    (tmp_path / "examples").symlink_to(EXAMPLES.parent)
    here = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-ec", build], cwd=tmp_path, check=True, env=os.environ | here)
    found = try_client(recipe, str(tmp_path / "device_client"), client=2)
    assert found.difference < 1e-6
    assert found.from_torch < 1e-6


@pytest.mark.long
@pytest.mark.usefixtures("programs")
def test_clients_that_fail_are_named(recipe: Path) -> None:
    with pytest.raises(ConfigError, match="no-such-client: cannot be run"):
        try_client(recipe, "no-such-client")
    with pytest.raises(UpdateError, match="false: ended with 1 and said: nothing"):
        try_client(recipe, "false")
    with pytest.raises(UpdateError, match=r"update\.json: cannot be read"):
        try_client(recipe, "true")
    with pytest.raises(ConfigError, match="client 99: there are 0 to 5"):
        try_client(recipe, "true", client=99)


@pytest.fixture
def folder(setting: Setting, programs: Path, tmp_path: Path) -> Path:
    """A task's folder with an update in it: the weights as they came."""
    weights = extract(setting.initial_state(), setting.family, 1)
    program = open_trainable(programs / "submodel-1.pte")
    write_task(tmp_path, TASK, program, weights, *setting.site().given_to(TASK))
    shutil.copy(tmp_path / "weights.safetensors", tmp_path / "update.safetensors")
    write_report(tmp_path)
    return tmp_path


def write_report(folder: Path, **other: Any) -> None:
    task = json.loads((folder / "task.json").read_text())
    names = ("round", "client", "submodel", "examples")
    done = subprocess.run(
        ["sha256sum", "update.safetensors"], cwd=folder, capture_output=True, text=True, check=True
    )
    sums = {"update.safetensors": done.stdout.split()[0]}
    report = {"form": "nefl-update-1", **{n: task[n] for n in names}, "loss": 1.0, "sha256": sums}
    (folder / "update.json").write_text(json.dumps(report | other))


def test_a_task_says_all_that_a_client_needs(folder: Path, setting: Setting) -> None:
    task = json.loads((folder / "task.json").read_text())
    assert [size for size, _ in task["steps"]] == [8, 8, 8, 8, 8, 8]  # a last one of 1 is left out
    assert task["steps"][0][1] != task["steps"][-1][1]
    assert task["norms"] == [["norm", 16, 0.1]]
    assert load_file(folder / "steps.safetensors")["inputs"].shape == (48, 1, 8, 8)
    assert set(load_file(folder / "weights.safetensors")) == set(setting.family.layout(1))
    update = read_update(folder, TASK, open_trainable(folder / "program.pte").card)
    assert list(update.trained) == list(setting.family.layout(1))
    assert (update.examples, update.metrics) == (25, {"loss": 1.0})


def test_a_device_with_examples_of_its_own_gets_no_steps(
    setting: Setting, programs: Path, tmp_path: Path
) -> None:
    """It finds all in the task that the steps of others are made of, by the contract's formulas."""
    weights = extract(setting.initial_state(), setting.family, 1)
    program = open_trainable(programs / "submodel-1.pte")
    _, how = setting.site().given_to(TASK)
    write_task(tmp_path, TASK, program, weights, None, how)
    task = json.loads((tmp_path / "task.json").read_text())
    assert task["steps"] is None
    assert sorted(task["sha256"]) == ["program.pte", "weights.safetensors"]
    assert not (tmp_path / "steps.safetensors").exists()
    assert program.card.facts["image_shape"] == [1, 8, 8]
    # The contract's rates, by hand: a cosine after 3 steps of warm-up, 6 steps in each of 3 rounds.
    schedule, rounds, count = task["schedule"], task["rounds"], 6
    warm, rates = schedule["warmup_steps"] / count, []
    for step in range(count):
        at = task["round"] - 1 + step / count
        share = (
            (at + 1 / count) / warm
            if at < warm
            else 0.5 * (1 + math.cos(math.pi * (at - warm) / (rounds - warm)))
        )
        rates.append(task["learning_rate"] * share)
    rows, how = setting.site().given_to(TASK)
    with own_generator(TASK, how) as generator:
        steps = list(local_steps(TASK, rows, how, generator))
    assert [step.learning_rate for step in steps] == pytest.approx(rates)
    # And its inputs: bytes by mean and deviation.
    picture = np.asarray(setting.task.train["image"][:1])
    mean, std = (np.float32(program.card.facts[key]) for key in ("mean", "std"))
    wanted = (np.float32(picture) / 255 - mean.reshape(-1, 1, 1)) / std.reshape(-1, 1, 1)
    made = setting.task.make_inputs({"image": torch.from_numpy(picture.copy())})
    assert np.allclose(made.numpy(), wanted, atol=1e-5)


def changed(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "update.safetensors")
    change(tensors)
    save_file(tensors, folder / "update.safetensors")


def test_updates_that_are_not_as_agreed_are_refused(folder: Path) -> None:
    card = open_trainable(folder / "program.pte").card

    def refused(match: str) -> None:
        with pytest.raises(UpdateError, match=match):
            read_update(folder, TASK, card)

    write_report(folder, form="mine")
    refused(r"update\.json: form is 'mine', expected 'nefl-update-1'")
    write_report(folder, client=5)
    refused(r"client is 5, expected 2")
    write_report(folder, examples="many")
    refused("examples 'many'")
    write_report(folder)
    changed(folder, lambda t: t["fc.bias"].add_(1))
    refused(r"update\.safetensors: does not have the checksum")
    changed(folder, lambda t: t.pop("fc.bias"))
    write_report(folder)
    refused("fc.bias is missing, expected float32")
    changed(folder, lambda t: t.update({"fc.bias": torch.zeros(3)}))
    write_report(folder)
    refused(r"fc.bias is torch.float32 \(3,\), expected float32 \(10,\)")
    changed(folder, lambda t: t.update({"fc.bias": torch.zeros(10), "more": torch.zeros(1)}))
    write_report(folder)
    refused("holds more, which it was not given")
    (folder / "update.json").write_text("[")
    refused(r"update\.json: is no JSON")
