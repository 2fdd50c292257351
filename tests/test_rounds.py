"""Rounds that do not count."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import nefl
from nefl.artifacts.checkpoint import load_state
from nefl.artifacts.kept import checkpoints
from nefl.artifacts.runfolder import RunFolder
from nefl.config.reading import config_from, with_settings
from nefl.errors import RunError
from nefl.rounds import Engine, run_round
from nefl.running.assembly import Setting, assemble
from nefl.running.lifecycle import Connect
from nefl.state import ClientFailure, ClientUpdate, ServerState, TrainTask


class Huge:
    """An engine in which the first two clients of some rounds send the largest finite numbers."""

    def __init__(self, inner: Engine, rounds: set[int], attempts: int) -> None:
        self._inner, self._rounds, self._left = inner, rounds, attempts
        self.settle, self.evaluate, self.close = inner.settle, inner.evaluate, inner.close

    def train(
        self, state: ServerState, tasks: Sequence[TrainTask]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        wrong = state.round_number + 1 in self._rounds and self._left > 0
        self._left -= wrong
        for place, result in enumerate(self._inner.train(state, tasks)):
            if wrong and place < 2 and isinstance(result, ClientUpdate):
                largest = torch.tensor(3e38)
                trained = {
                    name: largest.expand(tensor.shape) if tensor.is_floating_point() else tensor
                    for name, tensor in result.trained.items()
                }
                result = replace(result, trained=trained)
            yield result


def with_huge(rounds: set[int], attempts: int = 100) -> Connect:
    def connect(setting: Setting, folder: RunFolder) -> tuple[Setting, Engine]:
        return setting, Huge(setting.engine(folder.partition), rounds, attempts)

    return connect


def repeated(out: Path) -> list[str]:
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [event["why"] for event in map(json.loads, lines) if event["event"] == "repeated"]


def test_what_is_not_finite_after_averaging_does_not_count(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(RunError, match=r"round 3 failed 3 times: .* not finite after averaging"):
        nefl.train(quick, out, connect=with_huge({3}))
    assert len(repeated(out)) == 3
    assert "shared conv1.weight is not finite after averaging 4 updates" in repeated(out)[0]
    checkpoint = checkpoints(out)[0]
    assert checkpoint.name == "round-0000002.safetensors"
    state = load_state(checkpoint, nefl.make_family("resnet8", "nefl-wd", input_shape=(1, 8, 8)))
    for tensors in (state.shared, *state.per_submodel):
        assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
    resumed = nefl.resume(out).summary["state_sha256"]
    assert resumed == nefl.train(quick, tmp_path / "straight").summary["state_sha256"]


def test_such_a_round_is_tried_again_with_others(quick: dict[str, Any], tmp_path: Path) -> None:
    settings = with_settings(quick, {"server.weighting": "examples"})
    result = nefl.train(settings, tmp_path / "run", connect=with_huge({2}, attempts=1))
    assert len(repeated(tmp_path / "run")) == 1
    assert result.state.round_number == 4
    assert all(torch.isfinite(tensor).all() for tensor in result.state.shared.values())


@pytest.mark.parametrize("said", [float("nan"), float("inf")])
def test_a_loss_that_a_client_makes_up_spoils_no_mean(quick: dict[str, Any], said: float) -> None:
    setting = assemble(config_from(quick))
    engine, state = setting.engine(Path("unused")), setting.initial_state()

    class Boasting(Huge):
        """Its first client says that of its loss."""

        def train(
            self, state: ServerState, tasks: Sequence[TrainTask]
        ) -> Iterator[ClientUpdate | ClientFailure]:
            for place, result in enumerate(engine.train(state, tasks)):
                assert isinstance(result, ClientUpdate)
                losses.append(result.metrics["loss"])
                yield result if place else replace(result, metrics={"loss": said})

    losses: list[float] = []
    _, report = run_round(state, setting.plan, Boasting(engine, set(), 0))
    assert report.loss == pytest.approx(sum(losses[1:]) / len(losses[1:]))
    assert not report.failures
