from typing import Any

import pytest
import torch

from nefl.artifacts.checkpoint import state_sha256
from nefl.config import config_from, with_settings
from nefl.engines.serial import SerialEngine
from nefl.engines.site import augmentation, pick_device, pick_memory_format
from nefl.errors import ConfigError
from nefl.methods import make_family
from nefl.rounds import run_round
from nefl.setting import prepare


def test_narrow_networks_have_channels_last() -> None:
    narrow, wide = make_family("resnet20", "nefl-w"), make_family("resnet18", "nefl-w")
    assert pick_memory_format("auto", narrow) is torch.channels_last
    assert pick_memory_format("auto", wide) is torch.contiguous_format
    assert pick_memory_format("contiguous", narrow) is torch.contiguous_format
    assert pick_memory_format("channels_last", wide) is torch.channels_last


def test_unknown_devices_are_refused() -> None:
    assert pick_device("cpu").type == "cpu"
    for name in ("abacus", "cuda:99", "xpu"):
        with pytest.raises(ConfigError, match=f"engine.device '{name}'"):
            pick_device(name)


def test_augmentation_is_the_data_sets_unless_told(quick: dict[str, Any]) -> None:
    config = config_from(quick)
    assert augmentation(config, "cifar10") == "crop-flip"
    assert augmentation(config, "somebody's") == "none"
    told = config_from(with_settings(quick, {"data.augment": "none"}))
    assert augmentation(told, "cifar10") == "none"


def test_nothing_of_one_client_reaches_the_next(quick: dict[str, Any]) -> None:
    """Modules are reused; a round must not depend on what they did before."""
    torch.set_num_threads(1)
    setting = prepare(config_from(quick))
    plan, state = setting.plan, setting.family.initial_state(0)
    used = SerialEngine(setting.site(), setting.family)
    later, _ = run_round(state, plan, used)
    used.evaluate(later, range(1, 6))
    again, _ = run_round(state, plan, used)
    assert state_sha256(again) == state_sha256(later)
    fresh, _ = run_round(state, plan, SerialEngine(setting.site(), setting.family))
    assert state_sha256(fresh) == state_sha256(later)
