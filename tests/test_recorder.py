"""The recorder keeps what it may have to save where nothing can take it away."""

from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from nefl.artifacts.kept import read_kept
from nefl.artifacts.runfolder import RunFolder
from nefl.config import RunConfig, ServerConfig
from nefl.methods import make_family
from nefl.recorder import Recorder
from nefl.rounds import RoundReport
from nefl.state import ServerState


class OnDevice:
    """A tensor of a device that an error can take away."""

    lost = False

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.device = torch.device("cuda", 0)

    def to(self, where: torch.device) -> Tensor:
        assert not self.lost, "device-side assert triggered"
        return self.tensor.to(where)


def test_a_lost_device_does_not_cost_the_last_round(tmp_path: Path) -> None:
    family = make_family("resnet8", "nefl-wd")
    fresh = family.initial_state(0)
    groups = ({n: OnDevice(t) for n, t in g.items()} for g in (fresh.shared, *fresh.per_submodel))
    shared, *own = cast("list[dict[str, Tensor]]", list(groups))
    config = RunConfig(rounds=9, server=ServerConfig(checkpoint_every=5))
    folder = RunFolder.create(tmp_path / "run", config)
    recorder = Recorder(folder, config, fresh)
    report = RoundReport(1, 1, 0.0, {1: 1}, 0.5, 0, 0, ())
    recorder.round_done(ServerState(1, shared, tuple(own)), report, None)
    OnDevice.lost = True
    recorder.save()
    folder.close()
    assert read_kept(tmp_path / "run", family).round_number == 1
