"""Whole runs in which some clients train in ExecuTorch."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import nefl
from nefl.artifacts.checkpoint import state_sha256
from nefl.artifacts.notes import read_log
from nefl.config import EngineConfig
from nefl.errors import RunError
from nefl.ondevice.runtime import Session
from nefl.rounds import Observer, RoundReport
from tests.ondevice.conftest import on_device


class Ended(Observer):
    """Ends a run after its first round: as Ctrl-C does, or with a signal.

    Ctrl-C's own signal is ignored in what a shell starts in the background, these tests too.
    """

    def __init__(self, end: int | None = None) -> None:
        self._end = end

    def round_done(
        self,
        state: nefl.ServerState,
        report: RoundReport,
        evaluations: Sequence[nefl.Evaluation] | None,
    ) -> None:
        """End it."""
        if self._end is None:
            raise KeyboardInterrupt
        os.kill(os.getpid(), self._end)


@pytest.mark.long
@pytest.mark.usefixtures("setting")
def test_a_mixed_run_is_the_torch_run_but_for_last_bits(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    plain = nefl.train(tiny, tmp_path / "torch")
    half = on_device(tiny, client_share=0.5)
    mixed = nefl.train(half, tmp_path / "mixed")
    assert mixed.summary["failures"] == 0
    assert state_sha256(mixed.state) != state_sha256(plain.state)
    for name, tensor in plain.state.shared.items():
        assert torch.allclose(mixed.state.shared[name], tensor, rtol=1e-3, atol=1e-5), name
    with pytest.raises(KeyboardInterrupt):
        nefl.train(half, tmp_path / "stopped", observers=[Ended()])
    killed = os.fork()
    if killed == 0:
        try:
            nefl.train(half, tmp_path / "killed", observers=[Ended(signal.SIGKILL)])
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(killed, 0)[1]) == -signal.SIGKILL
    for name in ("stopped", "killed"):
        again = nefl.resume(tmp_path / name)
        assert state_sha256(again.state) == state_sha256(mixed.state), name


@pytest.mark.usefixtures("setting")
def test_a_run_is_not_resumed_with_other_clients(tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        nefl.train(tiny, tmp_path / "run", observers=[Ended()])
    other = EngineConfig(name="serial", devices=("cpu",), client="executorch")
    with pytest.raises(RunError, match="settings"):
        nefl.resume(tmp_path / "run", engine=other)


@pytest.mark.long
@pytest.mark.usefixtures("setting")
def test_a_client_whose_runtime_fails_costs_its_update(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Session.run

    def fails(self: Session, inputs: torch.Tensor, target: torch.Tensor) -> list[torch.Tensor]:
        if len(inputs) == 8 and not hasattr(self, "failed"):
            self.failed = True  # type: ignore[attr-defined]
            raise RunError("ExecuTorch cannot train on a batch of (8, 1, 8, 8) (0x12)")
        return run(self, inputs, target)

    monkeypatch.setattr(Session, "run", fails)
    nefl.train(on_device({**tiny, "rounds": 1}), tmp_path / "run")
    log = str(list(read_log(tmp_path / "run")))
    assert "ExecuTorch cannot train on a batch of (8, 1, 8, 8)" in log


@pytest.mark.long
@pytest.mark.usefixtures("setting")
def test_workers_train_in_executorch_to_the_same_bits(tiny: dict[str, Any], tmp_path: Path) -> None:
    short = {**tiny, "rounds": 1}
    alone = nefl.train(on_device(short), tmp_path / "serial")
    others = nefl.train(on_device(short, name="workers", workers=1), tmp_path / "workers")
    assert state_sha256(others.state) == state_sha256(alone.state)
