"""What a run still has when its device fails."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nefl import Evaluation, ServerState
from nefl.artifacts.kept import read_kept
from nefl.artifacts.runfolder import RunFolder
from nefl.config.reading import config_from
from nefl.methods import make_family
from nefl.rounds import RoundReport
from nefl.running.recorder import Recorder
from nefl.tasks.metrics import METRICS

ACCURACY = METRICS["accuracy"]


class OnADevice(torch.Tensor):
    """A tensor that lies elsewhere, as far as anybody asks; a broken device gives nothing back."""

    broken = False

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")

    def to(self, *_args: Any, **_options: Any) -> torch.Tensor:
        if OnADevice.broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return self.as_subclass(torch.Tensor).clone()

    def cpu(self, *_args: Any, **_options: Any) -> torch.Tensor:
        return self.to("cpu")


def test_the_last_round_is_saved_though_the_device_is_gone(
    tmp_path: Path, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick["server"]["checkpoint_every"] = 100
    config = config_from(quick)
    family = make_family("resnet8", "nefl-wd", input_shape=(1, 8, 8))
    first = family.initial_state(0)

    def elsewhere(tensors: Any) -> dict[str, torch.Tensor]:
        return {name: tensor.clone().as_subclass(OnADevice) for name, tensor in tensors.items()}

    after = ServerState(1, elsewhere(first.shared), tuple(map(elsewhere, first.per_submodel)))
    folder = RunFolder.create(tmp_path / "run", config)
    recorder = Recorder(folder, config, first, ACCURACY, lambda *_: 0.0)
    recorder.round_done(after, RoundReport(1, 4, 0.0, {}, 0.0, 0, 0, ()), None)
    monkeypatch.setattr(OnADevice, "broken", True)
    recorder.save()
    found, problems = folder.load_newest(family)
    folder.close()
    assert found is not None
    assert not problems
    assert found.round_number == 1
    assert all(torch.equal(found.shared[name], first.shared[name]) for name in first.shared)


def test_a_state_moves_as_a_whole_or_not_at_all() -> None:
    state = make_family("resnet8", "nefl-wd", input_shape=(1, 8, 8)).initial_state(0)
    assert state.to("cpu") is state
    moved = state.to("meta")
    everything = [*moved.shared.values(), *(t for own in moved.per_submodel for t in own.values())]
    assert everything
    assert all(tensor.is_meta for tensor in everything)


def test_a_best_that_a_stop_interrupted_is_saved_with_the_checkpoint(
    tmp_path: Path, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_from(quick)
    family = make_family("resnet8", "nefl-wd", input_shape=(1, 8, 8))
    first = family.initial_state(0)
    folder = RunFolder.create(tmp_path / "run", config)
    recorder = Recorder(folder, config, first, ACCURACY, lambda *_: 0.0)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folder, "save_best", interrupted)
        with pytest.raises(KeyboardInterrupt):
            recorder.round_done(
                ServerState(1, first.shared, first.per_submodel),
                RoundReport(1, 4, 0.0, {}, 0.0, 0, 0, ()),
                [Evaluation(1, {"accuracy": 0.5}, 1.0)],
            )
    recorder.save()
    folder.close()
    assert read_kept(tmp_path / "run", family, best=True).round_number == 1
