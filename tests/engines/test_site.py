import gc
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from nefl.artifacts.checkpoint import state_sha256
from nefl.config.reading import config_from, with_settings
from nefl.engines.devices import pick_device
from nefl.engines.resident import resident
from nefl.engines.serial import SerialEngine
from nefl.engines.site import Site, pick_memory_format
from nefl.errors import ConfigError
from nefl.methods import make_family
from nefl.models.resnet import ResNet
from nefl.nesting.corners import extract
from nefl.nesting.inside import train_within
from nefl.rounds import run_round
from nefl.running.assembly import assemble
from nefl.server.evaluate import Chunk
from nefl.tasks.images import augmentation


def test_narrow_networks_have_channels_last() -> None:
    narrow, wide = make_family("resnet20", "nefl-w"), make_family("resnet18", "nefl-w")
    cpu = torch.device("cpu")
    assert pick_memory_format("auto", narrow, 5, cpu) is torch.channels_last
    assert pick_memory_format("auto", wide, 5, cpu) is torch.contiguous_format
    assert pick_memory_format("contiguous", narrow, 5, cpu) is torch.contiguous_format
    assert pick_memory_format("channels_last", wide, 5, cpu) is torch.channels_last


STEPS_OF_THE_NARROWEST = """
import torch
from nefl.config.reading import config_from
from nefl.running.assembly import assemble
from nefl.tasks.images import augmentation
from nefl.state import TrainTask
from nefl.nesting.corners import extract
data = {"name": "synthetic", "options": {"train": 256, "test": 16}}
clients, engine = {"count": 2, "per_round": 1}, {"name": "serial", "device": "cpu"}
setting = assemble(config_from({"data": data, "clients": clients, "engine": engine}))
site, state = setting.site(), setting.initial_state()
for number in range(1, 4):
    site.train(TrainTask(number, 0, 1), extract(state, setting.family, 1))
print("fine")
"""


@pytest.mark.long
def test_narrow_projections_spoil_no_memory() -> None:
    """Strided 1×1 convolutions of 2 to 7 channels write past their memory with channels last."""
    family = make_family("resnet8", "nefl-wd")  # 7, 10, 13, 15 and 16 channels
    for device, wanted in (("cpu", torch.contiguous_format), ("cuda", torch.channels_last)):
        for asked in ("auto", "channels_last"):
            found = [pick_memory_format(asked, family, k, torch.device(device)) for k in (1, 2)]
            assert found == [wanted, torch.channels_last]
            # The narrowest may be trained inside another, on the same inputs.
            within = train_within(family, lambda k: (1,) if k == 2 else ())
            assert pick_memory_format(asked, within, 2, torch.device(device)) is wanted
    checked = {**os.environ, "MALLOC_CHECK_": "3"}
    done = subprocess.run(
        [sys.executable, "-c", STEPS_OF_THE_NARROWEST], env=checked, capture_output=True, text=True
    )
    assert done.stdout == "fine\n", (done.returncode, done.stderr)


def test_unknown_devices_are_refused() -> None:
    assert pick_device("cpu").type == "cpu"
    for name in ("abacus", "cuda:99", "xpu", "meta"):
        with pytest.raises(ConfigError, match=f"engine.devices '{name}'"):
            pick_device(name)


def test_a_device_without_float64_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="engine.devices 'mps': has no float64.*use cpu"):
        pick_device("mps")

    def without_doubles(*_sizes: int, **options: Any) -> torch.Tensor:
        if options.get("dtype") is torch.float64:
            raise TypeError("cannot convert to float64")
        return torch.ones(())

    monkeypatch.setattr(torch, "empty", without_doubles)
    with pytest.raises(ConfigError, match="engine.devices 'cpu': cannot convert to float64"):
        pick_device("cpu")


@pytest.mark.long
def test_examples_are_on_a_device_once_for_all_sites(quick: dict[str, Any]) -> None:
    setting = assemble(config_from(quick))
    nowhere = torch.device("meta")  # the only other device that every machine has

    def site() -> Site:
        return Site(setting.config, setting.family, setting.task, setting.partition, nowhere)

    images = setting.task.train["image"]
    first, second = site(), site()
    assert resident(images, nowhere) is resident(images, nowhere)
    assert first._train.take(np.arange(3))["image"].is_meta
    assert first._train._resident is not None
    assert second._train._resident is not None
    assert first._train._resident["image"] is second._train._resident["image"]
    # Another array is another copy, though it may come to lie where one was before.
    for number in range(20):
        array = np.full((2, 2), number)
        assert torch.equal(resident(array, torch.device("cpu")), torch.full((2, 2), number))
        del array
        gc.collect()


def test_augmentation_is_the_data_sets_unless_told(quick: dict[str, Any]) -> None:
    config = config_from(quick)
    assert augmentation(config, "cifar10") == "crop-flip"
    assert augmentation(config, "somebody's") == "none"
    told = config_from(with_settings(quick, {"data.augment": "none"}))
    assert augmentation(told, "cifar10") == "none"


def test_static_norms_are_measured_over_the_training_data(quick: dict[str, Any]) -> None:
    """The accuracy of HeteroFL must not depend on the order or the size of test batches."""
    torch.set_num_threads(1)
    quick = with_settings(quick, {"model.method": "heterofl", "data.augment": "none"})
    setting = assemble(config_from(quick))
    state, _ = run_round(
        setting.family.initial_state(0),
        setting.plan,
        SerialEngine(setting.site(), setting.family),
    )
    site, tensors = setting.site(), extract(state, setting.family, 3)
    whole = site.score(Chunk(3, 0, 100), tensors)
    parts = [site.score(Chunk(3, start, start + 1), tensors) for start in range(100)]
    right = [part.sums["accuracy"][0] for part in parts]
    assert sum(right) == whole.sums["accuracy"][0]
    assert sum(part.loss for part in parts) == pytest.approx(whole.loss, rel=1e-4)
    # By hand: the first norm sees the first convolution of every training image.
    module = setting.family.build(setting.family.specs[2])
    module.load_state_dict(tensors)
    assert isinstance(module, ResNet)
    images = torch.cat(list(site._training_batches()))
    features = module.conv1(images)
    measured = site.ready(3, tensors).get_submodule("bn1").measured
    assert isinstance(measured, tuple)
    torch.testing.assert_close(measured[0], features.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    expected = features.var((0, 2, 3), correction=0)
    torch.testing.assert_close(measured[1], expected, rtol=1e-4, atol=1e-5)


def test_measuring_changes_no_weight_and_no_training(quick: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    setting = assemble(config_from(with_settings(quick, {"model.method": "heterofl"})))
    state = setting.family.initial_state(0)
    used = SerialEngine(setting.site(), setting.family)
    used.evaluate(state, range(1, 6))
    after, _ = run_round(state, setting.plan, used)
    fresh, _ = run_round(state, setting.plan, SerialEngine(setting.site(), setting.family))
    assert state_sha256(after) == state_sha256(fresh)


def test_nothing_of_one_client_reaches_the_next(quick: dict[str, Any]) -> None:
    """Modules are reused; a round must not depend on what they did before."""
    torch.set_num_threads(1)
    setting = assemble(config_from(quick))
    plan, state = setting.plan, setting.family.initial_state(0)
    used = SerialEngine(setting.site(), setting.family)
    later, _ = run_round(state, plan, used)
    used.evaluate(later, range(1, 6))
    again, _ = run_round(state, plan, used)
    assert state_sha256(again) == state_sha256(later)
    fresh, _ = run_round(state, plan, SerialEngine(setting.site(), setting.family))
    assert state_sha256(fresh) == state_sha256(later)
