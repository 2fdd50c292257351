"""Whole runs: they learn, repeat, stop, go on, and end up with the same weights."""

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import nefl
from nefl.artifacts.notes import read_log, stored_config
from nefl.artifacts.runfolder import RunFolder
from nefl.config import EngineConfig, LocalConfig, RunConfig
from nefl.config.reading import config_from, with_settings
from nefl.errors import ConfigError, DataError, NeflError, RunError
from nefl.export.source import open_run
from nefl.rounds import Observer, RoundReport, run_training
from nefl.running.assembly import assemble
from nefl.running.lifecycle import draw_partition, evaluate, resume, train
from nefl.state import ClientFailure, ClientUpdate, Evaluation, ServerState, TrainTask
from tests.forked import PROCESSES

SUMMARY_KEYS = {
    "accuracy",
    "worst",
    "average",
    "rounds",
    "seconds",
    "bytes_down",
    "bytes_up",
    "coverage",
    "state_sha256",
}


def test_a_run_leaves_a_folder_behind(quick: dict[str, Any], tmp_path: Path) -> None:
    result = train(quick, tmp_path / "run")
    assert isinstance(result, nefl.RunResult)
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names >= {"config.json", "partition.safetensors", "metrics.jsonl", "summary.json"}
    checkpoints = {p.name for p in (tmp_path / "run" / "checkpoints").iterdir()}
    assert checkpoints == {
        "round-0000003.safetensors",
        "round-0000004.safetensors",
        "best.safetensors",
    }
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary.keys() >= SUMMARY_KEYS
    assert len(summary["accuracy"]) == 5
    assert summary["worst"] == summary["accuracy"][0]
    assert all(0 <= a <= 1 for a in summary["accuracy"])
    rounds = [e for e in read_log(tmp_path / "run") if e["event"] == "round"]
    assert [e["round"] for e in rounds] == [1, 2, 3, 4]
    assert ["metrics" in e for e in rounds] == [False, True, False, True]
    assert sum(sum(e["trained"].values()) for e in rounds) == 16
    assert summary["bytes_up"] == sum(e["bytes_up"] for e in rounds) > 0
    scores = evaluate(tmp_path / "run")
    assert [e.values["accuracy"] for e in scores] == summary["accuracy"]
    assert len(evaluate(tmp_path / "run", best=True)) == 5


def test_the_same_seed_gives_the_same_weights(quick: dict[str, Any], tmp_path: Path) -> None:
    hashes = [
        train(with_settings(quick, {"seed": seed}), tmp_path / name).summary["state_sha256"]
        for seed, name in ((0, "a"), (0, "b"), (1, "c"))
    ]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.long
def test_every_engine_and_number_of_workers(quick: dict[str, Any], tmp_path: Path) -> None:
    straight = train(quick, tmp_path / "serial").summary["state_sha256"]
    with pytest.MonkeyPatch.context() as patch:
        for workers in (3, 2, 1):  # the three of the first are new processes
            other = with_settings(quick, {"engine.name": "workers", "engine.workers": workers})
            got = train(other, tmp_path / f"w{workers}").summary
            assert got["state_sha256"] == straight
            patch.setattr("nefl.engines.workers.subprocess", PROCESSES)


@pytest.mark.parametrize(
    ("model", "method"),
    [("resnet20", "depthfl"), ("vit_tiny", "nefl-wd"), ("vit_tiny", "scalefl-sd")],
)
def test_models_train(quick: dict[str, Any], tmp_path: Path, model: str, method: str) -> None:
    changes = {"model.name": model, "model.method": method, "rounds": 2, "clients.per_round": 2}
    summary = train(with_settings(quick, changes), tmp_path / "run").summary
    assert summary["failures"] == 0


def test_partitions_weights_and_optimisers(quick: dict[str, Any], tmp_path: Path) -> None:
    changes = {
        "partition.kind": "dirichlet",
        "clients.count": 5,
        "server.weighting": "examples",
        "local.optimizer": "adam",
        "local.learning_rate": 0.001,
        "local.memory_format": "contiguous",
        "schedule.name": "cosine",
        "schedule.warmup_steps": 3,
    }
    summary = train(with_settings(quick, changes), tmp_path / "run").summary
    assert summary["failures"] == 0


def test_devices_choose_submodels_and_time_is_simulated(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    devices = [
        {"name": "watch", "memory": 6e5, "macs_per_second": 1e7, "bandwidth": 1e5, "share": 3},
        {"name": "phone", "memory": 1e9, "macs_per_second": 1e9, "bandwidth": 1e6},
    ]
    quick = with_settings(quick, {"clients.capability": "devices", "clients.devices": devices})
    summary = train(quick, tmp_path / "run").summary
    times = summary["simulated"]
    assert 0 < times["nested_seconds"] < times["full_seconds"]
    assert 0 < times["strong_clients_per_round"] < 4


def test_a_users_own_model_and_data(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_things.py").write_text(
        "import numpy as np\n"
        "from nefl import Family, SubmodelSpec\n"
        "from nefl.models.table import ModelBuilder\n"
        "from nefl.nesting.signature import Signature\n"
        "def family(classes, input_shape):\n"
        "    build = ModelBuilder('resnet8', Signature(input_shape, classes))\n"
        "    full = build.full_blocks\n"
        "    return Family(build, (SubmodelSpec(full, 0.5), SubmodelSpec(full)))\n"
        "def data():\n"
        "    rng = np.random.default_rng(0)\n"
        "    x = rng.integers(0, 255, (60, 1, 8, 8)).astype('uint8')\n"
        "    y = rng.integers(0, 3, 60)\n"
        "    return {'x_train': x, 'y_train': y, 'x_test': x, 'y_test': y}\n"
        "def broken(classes, input_shape):\n"
        "    return 5\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    changes: dict[str, Any] = {
        "model.name": "own_things:family",
        "data": {"name": "own_things:data"},
        "clients.count": 6,
        "engine.name": "workers",
        "engine.workers": 1,
        "rounds": 2,
    }
    summary = train(with_settings(quick, changes), tmp_path / "run").summary
    assert len(summary["accuracy"]) == 2
    changes["model.name"] = "own_things:broken"
    with pytest.raises(ConfigError, match="own_things:broken: returned int"):
        train(with_settings(quick, changes), tmp_path / "other")
    changes["model.name"] = "own_things:nothing"
    with pytest.raises(ConfigError, match="own_things:nothing: cannot be imported"):
        train(with_settings(quick, changes), tmp_path / "other")


class StopAfter(nefl.Observer):
    """An observer that raises after some rounds, as Ctrl-C would."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def round_done(
        self, state: ServerState, report: RoundReport, evaluations: Sequence[Evaluation] | None
    ) -> None:
        if state.round_number == self.rounds:
            raise KeyboardInterrupt


@pytest.mark.parametrize("every", [1, 3, 10])
def test_stop_and_resume(quick: dict[str, Any], tmp_path: Path, every: int) -> None:
    straight = train(quick, tmp_path / "straight").summary
    quick = with_settings(quick, {"server.checkpoint_every": every})
    with pytest.raises(KeyboardInterrupt):
        train(quick, tmp_path / "run", observers=[StopAfter(2)])
    newest = max((tmp_path / "run" / "checkpoints").glob("round-*"))
    assert newest.name == "round-0000002.safetensors", "Ctrl-C leaves a checkpoint"
    result = resume(tmp_path / "run")
    assert result.summary["state_sha256"] == straight["state_sha256"]
    assert result.summary["accuracy"] == straight["accuracy"]
    again = resume(tmp_path / "run")
    assert again.summary["state_sha256"] == straight["state_sha256"]
    assert again.summary["bytes_up"] == straight["bytes_up"]


@pytest.mark.long
def test_resume_on_another_engine(quick: dict[str, Any], tmp_path: Path) -> None:
    straight = train(quick, tmp_path / "straight").summary["state_sha256"]
    with pytest.raises(KeyboardInterrupt):
        train(quick, tmp_path / "run", observers=[StopAfter(2)])
    result = resume(tmp_path / "run", engine=EngineConfig("workers", 2, ("cpu",)))
    assert result.summary["state_sha256"] == straight


def test_a_damaged_newest_checkpoint_is_passed_over(quick: dict[str, Any], tmp_path: Path) -> None:
    straight = train(quick, tmp_path / "straight").summary["state_sha256"]
    with pytest.raises(KeyboardInterrupt):
        train(quick, tmp_path / "run", observers=[StopAfter(3)])
    newest = tmp_path / "run" / "checkpoints" / "round-0000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])
    assert resume(tmp_path / "run").summary["state_sha256"] == straight
    events = list(read_log(tmp_path / "run"))
    damaged = [e for e in events if e["event"] == "damaged"]
    assert "round-0000003" in damaged[0]["reason"]


def started(quick: dict[str, Any], run: Path, config: Path) -> "subprocess.Popen[bytes]":
    config.write_text(json.dumps(quick))
    command = ["resume", str(run)] if (run / "config.json").exists() else None
    command = command or ["train", str(config), "--out", str(run)]
    return subprocess.Popen(
        [sys.executable, "-m", "nefl", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def rounds_logged(run: Path) -> int:
    return sum(event["event"] == "round" for event in read_log(run))


@pytest.mark.long
def test_kills_at_random_moments_change_nothing(quick: dict[str, Any], tmp_path: Path) -> None:
    """SIGKILL whenever it pleases, also while a checkpoint is written; then go on.

    The worker is a process of its own; tests/campaign has the serial engine.
    """
    quick = with_settings(quick, {"rounds": 12, "server.keep": 1})
    straight = train(quick, tmp_path / "straight").summary
    quick = with_settings(quick, {"engine.name": "workers", "engine.workers": 1})
    moments = random.Random("workers")
    run = tmp_path / "run"
    kills = 0
    while True:
        before = rounds_logged(run)
        process = started(quick, run, tmp_path / "config.json")
        while process.poll() is None and rounds_logged(run) == before:
            time.sleep(0.02)
        try:
            # A slow machine would be killed after every round, which proves no more.
            process.wait(moments.random() if kills < 2 else None)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            continue
        assert process.returncode == 0
        break
    assert kills > 1
    summary = json.loads((run / "summary.json").read_text())
    assert summary["state_sha256"] == straight["state_sha256"]
    assert summary["accuracy"] == straight["accuracy"]
    assert not list(run.rglob("*.part")), "nothing half-written is left"


@pytest.mark.long
@pytest.mark.parametrize(
    ("signals", "ignored"),
    [
        ([signal.SIGINT], False),
        ([signal.SIGTERM, signal.SIGTERM, signal.SIGINT], False),
        ([signal.SIGINT, signal.SIGTERM], True),
    ],
    ids=["Ctrl-C", "impatient", "in the background"],
)
def test_signals_stop_a_run_at_a_checkpoint(
    quick: dict[str, Any], tmp_path: Path, signals: list[signal.Signals], ignored: bool
) -> None:
    """A shell starts background jobs with SIGINT ignored; a run leaves it so, and heeds SIGTERM."""
    quick = with_settings(quick, {"rounds": 100000, "server.checkpoint_every": 100000})
    run, settings = tmp_path / "run", tmp_path / "c.json"
    settings.write_text(json.dumps(quick))
    # Whatever this process was started with: nohup and CI systems pass an ignored SIGINT on.
    at_start = signal.SIG_IGN if ignored else signal.SIG_DFL
    process = subprocess.Popen(
        [sys.executable, "-m", "nefl", "train", str(settings), "--out", str(run)],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, at_start),
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and rounds_logged(run) == 0:
        time.sleep(0.1)
    for number in signals:
        before = rounds_logged(run)
        process.send_signal(number)
        while ignored and number == signal.SIGINT and rounds_logged(run) < before + 2:
            assert process.poll() is None
            time.sleep(0.1)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert f"go on with: nefl resume {run}" in errors
    assert "Traceback" not in errors
    newest = max((run / "checkpoints").glob("round-*")).name
    assert newest == f"round-{rounds_logged(run):07d}.safetensors"


class FaultyEngine:
    """An engine whose clients fail in some attempts."""

    def __init__(self, failing: int) -> None:
        self.failing = failing
        self.rounds = 0

    def train(
        self, state: ServerState, tasks: Sequence[TrainTask]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        self.rounds += 1
        for task in tasks:
            yield ClientFailure(task, "battery empty")
            if self.rounds > self.failing:
                return

    def settle(self, round_number: int, counted: Collection[int]) -> None:
        """Nothing."""

    def evaluate(self, state: ServerState, submodels: Sequence[int]) -> list[Evaluation]:
        return [Evaluation(k, {"accuracy": 0.5}, 1.0) for k in submodels]

    def close(self) -> None:
        """Nothing."""


def test_a_round_below_its_quorum_is_repeated_then_the_run_stops(
    quick: dict[str, Any],
) -> None:
    setting = assemble(config_from(quick))
    engine = FaultyEngine(failing=99)
    state = setting.family.initial_state(0)
    with pytest.raises(RunError, match="round 1 failed 3 times: only 0 of 4 .*battery empty"):
        run_training(state, setting.plan, engine, [])
    assert engine.rounds == 3


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"model.name": "resnet9"}, ConfigError, "resnet9"),
        ({"model.method": "magic"}, ConfigError, "magic"),
        ({"model.ratios": [0.5, 0.1, 1]}, ConfigError, "ratios"),
        ({"data.name": "imagenet"}, NeflError, "imagenet"),
        ({"data.train": 10**6}, ConfigError, "1000000"),
        ({"data.augment": "magic"}, NeflError, "magic"),
        ({"data": {"name": "cifar10", "root": "/nonexistent"}}, DataError, "nonexistent"),
        ({"clients.count": 500}, ConfigError, "client"),
        ({"engine.device": "abacus"}, ConfigError, "abacus"),
        ({"model.name": "vit_b_16"}, ConfigError, "patch"),
    ],
)
def test_what_cannot_be_run_is_refused_before_a_folder_is_made(
    quick: dict[str, Any], tmp_path: Path, changes: dict[str, Any], kind: type, words: str
) -> None:
    with pytest.raises(kind, match=words):
        train(with_settings(quick, changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_resuming_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run's folder"):
        resume(tmp_path)


def test_what_a_run_rests_on_must_not_change(quick: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(quick, tmp_path / "run", observers=[StopAfter(2)])
    stored = tmp_path / "run" / "config.json"
    original = stored.read_text()
    stored.write_text(original.replace('"seed": 0', '"seed": 99'))
    with pytest.raises(RunError, match="settings and partition changed"):
        resume(tmp_path / "run")
    with pytest.raises(RunError, match="partition changed"):
        evaluate(tmp_path / "run")
    stored.write_text(original.replace('"epochs": 1', '"epochs": 2'))
    with pytest.raises(RunError, match="settings changed since the run was started"):
        resume(tmp_path / "run")
    stored.write_text(original.replace('"nefl-wd"', '"nefl-w"'))
    with pytest.raises(RunError, match="settings and model changed"):
        resume(tmp_path / "run")
    stored.write_text(original)
    assert resume(tmp_path / "run").summary["rounds"] == 4


OWN_CODE = """
import own_layers
import numpy as np
from nefl import Family, SubmodelSpec
from nefl.models.table import ModelBuilder
from nefl.nesting.signature import Signature
def family(classes, input_shape):
    build = ModelBuilder('resnet8', Signature(input_shape, classes))
    return Family(build, (SubmodelSpec(build.full_blocks, 0.5), SubmodelSpec(build.full_blocks)))
def data():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (60, 1, 8, 8)).astype('uint8')
    y = rng.integers(0, 3, 60)
    x[0] = own_layers.turned(x[0])
    return {'x_train': x, 'y_train': y, 'x_test': x, 'y_test': y}
"""


def own_run(quick: dict[str, Any], tmp_path: Path, patch: pytest.MonkeyPatch) -> Path:
    """A run with a model and data of the user's own, stopped after two rounds."""
    (tmp_path / "own_code.py").write_text(OWN_CODE)
    (tmp_path / "own_layers.py").write_text("def turned(x):\n    return x\n")
    patch.syspath_prepend(str(tmp_path))
    for name in ("own_code", "own_layers"):
        patch.delitem(sys.modules, name, raising=False)
    own = {"model.name": "own_code:family", "data": {"name": "own_code:data"}, "clients.count": 6}
    with pytest.raises(KeyboardInterrupt):
        train(with_settings(quick, own), tmp_path / "run", observers=[StopAfter(2)])
    return tmp_path / "run"


def test_a_changed_source_is_asked_about(
    quick: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = own_run(quick, tmp_path, monkeypatch)
    (tmp_path / "own_layers.py").write_text("def turned(x):\n    return x + 0\n")
    with pytest.raises(RunError, match="the source of own_layers changed .* --changed-code"):
        resume(run)
    assert evaluate(run)
    assert "the source of own_layers changed" in caplog.text
    assert resume(run, changed_code=True).summary["rounds"] == 4
    changes = [e["modules"] for e in read_log(run) if e["event"] == "changed_code"]
    assert changes == [["own_layers"]]
    resume(run)  # from now on this is the run's code


def test_changed_images_are_refused(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turned pixels leave labels, mean and deviation as they were."""
    run = own_run(quick, tmp_path, monkeypatch)
    (tmp_path / "own_layers.py").write_text("def turned(x):\n    return x[:, ::-1]\n")
    monkeypatch.delitem(sys.modules, "own_layers")
    monkeypatch.delitem(sys.modules, "own_code")
    with pytest.raises(RunError, match="data changed since the run was started"):
        resume(run, changed_code=True)
    for look in (evaluate, draw_partition, open_run):
        with pytest.raises(RunError, match="data changed since the run was started"):
            look(run)


@pytest.mark.parametrize("stop", [2, None])
def test_a_run_with_more_rounds_is_as_if_it_had_had_them_from_the_start(
    quick: dict[str, Any], tmp_path: Path, stop: int | None
) -> None:
    quick = with_settings(quick, {"schedule.name": "constant"})
    straight = train(with_settings(quick, {"rounds": 6}), tmp_path / "straight").summary
    if stop is None:
        train(quick, tmp_path / "run")
    else:
        with pytest.raises(KeyboardInterrupt):
            train(quick, tmp_path / "run", observers=[StopAfter(stop)])
    found = resume(tmp_path / "run", rounds=6).summary
    assert found["state_sha256"] == straight["state_sha256"]
    assert stored_config(tmp_path / "run").rounds == 6
    assert resume(tmp_path / "run").summary["rounds"] == 6
    with pytest.raises(RunError, match="has done 6 rounds, more than 5"):
        resume(tmp_path / "run", rounds=5)


def test_a_run_does_not_end_with_a_round_that_was_not_measured(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    quick = with_settings(quick, {"schedule.name": "constant", "server.evaluate_every": 100})
    with pytest.raises(KeyboardInterrupt):
        train(quick, tmp_path / "run", observers=[StopAfter(2)])
    with pytest.raises(RunError, match="round 2 was not evaluated"):
        resume(tmp_path / "run", rounds=2)
    assert resume(tmp_path / "run", rounds=3).summary["accuracy"]


def test_a_kill_between_new_rounds_and_their_config_is_no_harm(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = with_settings(quick, {"schedule.name": "constant", "rounds": 2})
    train(quick, tmp_path / "run")

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("nefl.artifacts.runfolder.write_json", die)
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "run", rounds=3)
    assert resume(tmp_path / "run").summary["rounds"] == 2
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "log", die)
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "run", rounds=3)
    assert resume(tmp_path / "run").summary["rounds"] == 3


def test_a_rate_that_follows_the_rounds_says_why_there_can_be_no_more(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    train(quick, tmp_path / "run")
    with pytest.raises(RunError, match=r"8 rounds instead of 4: .*\(step\).* in round 3 it would"):
        resume(tmp_path / "run", rounds=8)
    assert stored_config(tmp_path / "run").rounds == 4


def test_a_start_that_was_killed_can_be_resumed(quick: dict[str, Any], tmp_path: Path) -> None:
    straight = train(quick, tmp_path / "straight").summary["state_sha256"]
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text((tmp_path / "straight" / "config.json").read_text())
    (run / ".partition.safetensors.x77.part").mkdir()
    (run / ".partition.safetensors.x77.part" / ".tmpABCDEF").write_bytes(b"half")
    assert resume(run).summary["state_sha256"] == straight
    assert not list(run.glob("*.part"))


def test_the_best_is_kept_even_if_its_saving_was_interrupted(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_best", die)
        with pytest.raises(KeyboardInterrupt):
            train(quick, tmp_path / "run")
    # As a kill would leave it: the round is logged, its checkpoint is not there.
    for path in (tmp_path / "run" / "checkpoints").glob("round-0000002*"):
        path.unlink()
    resume(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "best.safetensors").exists()


def test_a_config_made_by_hand_is_checked_too(tmp_path: Path) -> None:
    wrong = RunConfig(local=LocalConfig(optimizer="SGD"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="local.optimizer is 'SGD'"):
        train(wrong, tmp_path / "run")


def test_the_process_is_left_as_it_was(quick: dict[str, Any], tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        before = torch.random.get_rng_state()
        train(quick, tmp_path / "run")
        evaluate(tmp_path / "run")
        assert torch.get_num_threads() == 2
        assert torch.equal(before, torch.random.get_rng_state())
    finally:
        torch.set_num_threads(threads)  # the tests that follow would wait for each other


def test_logs_are_json_for_everyone_even_if_a_run_diverges(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    quick = with_settings(quick, {"local.learning_rate": 1e5, "server.quorum": 0.01})
    with suppress(RunError):
        train(quick, tmp_path / "run")
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text


OWN_MODELS = """
import torch
from torch import nn
from nefl import Family, SubmodelSpec
from nefl.nesting.spec import kept_channels

SIZE = 16

class Net(nn.Module):
    def __init__(self, spec, classes, dropout):
        super().__init__()
        size = kept_channels(SIZE, spec.stage_width(0))
        self.first = nn.Linear(64, size)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(size, classes)
        self.register_buffer("drift", torch.zeros(()), persistent=False)
    def forward(self, x):
        x = torch.relu(self.first(x.flatten(1))) + self.drift
        if self.training:
            self.drift += 0.01
        return self.last(self.dropout(x))

class Build:
    def __init__(self, classes, dropout):
        self.classes, self.dropout = classes, dropout
    def __call__(self, spec):
        return Net(spec, self.classes, self.dropout)

def dropping(classes, input_shape):
    full = ((1.0,),)
    return Family(Build(classes, 0.3), (SubmodelSpec(full, 0.5), SubmodelSpec(full)))
"""


@pytest.mark.long
def test_dropout_and_unsaved_buffers_repeat_on_every_engine(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_models.py").write_text(OWN_MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    quick = with_settings(quick, {"model.name": "own_models:dropping"})
    hashes = set()
    for number, workers in enumerate((0, 0, 2)):
        engine = {"name": "workers" if workers else "serial", "workers": workers, "device": "cpu"}
        torch.rand(number)  # what the caller did before must not matter
        result = train(with_settings(quick, {"engine": engine}), tmp_path / f"r{number}")
        hashes.add(result.summary["state_sha256"])
    assert len(hashes) == 1


def test_workers_that_build_another_model_are_refused(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_models.py").write_text(OWN_MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    changes = {"model.name": "own_models:dropping", "engine.name": "workers", "engine.workers": 1}
    # What a script sets in a module is not there in the module that a worker imports.
    monkeypatch.delitem(sys.modules, "own_models", raising=False)
    monkeypatch.setattr(importlib.import_module("own_models"), "SIZE", 24)
    with pytest.raises(RunError, match="built otherwise in the worker"):
        train(with_settings(quick, changes), tmp_path / "run")


@pytest.mark.long
def test_the_first_run_learns(tmp_path: Path) -> None:
    """A shorter first run already tells digits apart with every submodel."""
    values = nefl.recipe_values("digits")
    changes = {"rounds": 30, "server.evaluate_every": 30, "engine.name": "serial"}
    summary = train(with_settings(values, changes), tmp_path / "run").summary
    assert summary["average"] > 0.85


@pytest.mark.long
def test_real_cifar10_trains(tmp_path: Path, cifar10: Path) -> None:
    values = {
        "rounds": 2,
        "model": {"name": "resnet8"},
        "data": {"name": "cifar10", "root": str(cifar10), "train": 1000, "test": 500},
        "partition": {"kind": "dirichlet", "alpha": 0.5},
        "clients": {"count": 10, "per_round": 4},
        "local": {"epochs": 1},
        "engine": {"name": "serial"},
    }
    summary = train(values, tmp_path / "run").summary
    assert summary["failures"] == 0
    assert summary["average"] > 0.05


def test_observers_may_have_only_the_methods_they_need(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    class Counting(nefl.Observer):
        rounds = 0

        def round_done(self, *_: object) -> None:
            self.rounds += 1

    class Foreign:
        tasks = 0
        finished = False

        def task_done(self, done: int, tasks: int) -> None:
            self.tasks += 1
            assert 1 <= done <= tasks
            self.finished = done == tasks

    class Mistaken:
        def round_doen(self, *_: object) -> None: ...

    class Derived(Observer):
        def round_finished(self, *_: object) -> None: ...

    counting, foreign, mistaken = Counting(), Foreign(), Mistaken()
    watching: list[Any] = [counting, foreign]
    run = train(with_settings(quick, {"rounds": 2}), tmp_path / "run", observers=watching).path
    assert (counting.rounds, foreign.tasks) == (2, 8)
    assert foreign.finished
    for wrong, why in ((Derived(), "none of the methods"), (Counting, "is a class"), (7, "none")):
        watching = [wrong]
        with pytest.raises(ConfigError, match=why):
            train(quick, tmp_path / "none", observers=watching)
    watching = [mistaken]
    with pytest.raises(ConfigError, match="observers: Mistaken has none of the methods round_done"):
        train(quick, tmp_path / "other", observers=watching)
    assert not (tmp_path / "other").exists()
    with pytest.raises(ConfigError, match="derive it from nefl.Observer"):
        resume(run, observers=watching)
