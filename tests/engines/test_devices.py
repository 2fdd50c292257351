"""Which devices a run takes; those that are not here are faked where torch is asked for them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nefl.artifacts.checkpoint import state_sha256
from nefl.config import EngineConfig, RunConfig
from nefl.config.reading import config_from
from nefl.engines.devices import (
    check_precision,
    data_fits,
    pick_devices,
    place_sums,
    place_workers,
)
from nefl.engines.tuning import tuned_for
from nefl.errors import ConfigError
from nefl.moving import fetched, in_main_memory
from nefl.running.lifecycle import train

CPU = torch.device("cpu")
CUDA = [torch.device("cuda", number) for number in range(8)]


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nefl.engines.devices.gpus", lambda: tuple(CUDA[:2]))
    monkeypatch.setattr("nefl.engines.devices.use", lambda _device: None)
    monkeypatch.setattr("nefl.engines.devices.free_bytes", lambda _device: 1000)
    monkeypatch.setattr("nefl.engines.devices.generation", lambda device: 7 + device.index)


def test_workers_without_gpus_are_as_many_as_the_cores_allow() -> None:
    assert place_workers(EngineConfig("serial", 0, ("cpu",)), 10) == ()
    assert place_workers(EngineConfig("workers", 1, ("cpu",)), 10) == (CPU,)
    assert place_workers(EngineConfig("auto", 3, ("cpu",)), 10) == (CPU,) * 3
    assert place_workers(EngineConfig("auto", 1, ("cpu",)), 10) == ()
    assert len(place_workers(EngineConfig("workers", 0, ("cpu",)), 10)) >= 1
    assert place_workers(EngineConfig("workers", 0, ("cpu",)), 1) == (CPU,), (
        "no more than have work"
    )
    assert place_workers(EngineConfig(devices=("cpu", "cpu")), 10) == (CPU, CPU)
    assert place_workers(EngineConfig(devices=("cpu",), per_device=3), 10) == (CPU,) * 3


@pytest.mark.usefixtures("two_gpus")
def test_every_gpu_has_workers() -> None:
    first, second = CUDA[:2]
    assert place_workers(EngineConfig(), 10) == (first, second)
    assert place_workers(EngineConfig(), 1) == (), "one client needs one device"
    assert place_workers(EngineConfig(per_device=2), 10) == (first, second) * 2
    assert place_workers(EngineConfig(per_device=4), 5) == (first, second, first, second, first)
    assert place_workers(EngineConfig(workers=3), 10) == (first, second, first)
    assert place_workers(EngineConfig(devices=("cuda:1",)), 10) == (), "one device, one process"
    assert place_workers(EngineConfig(devices=("cuda:1",), per_device=2), 10) == (second,) * 2
    assert place_workers(EngineConfig("workers", devices=("cuda:1",)), 10) == (second,)


@pytest.mark.usefixtures("two_gpus")
def test_sums_are_where_updates_are() -> None:
    assert place_sums(EngineConfig(), CUDA[:2]) == CPU
    assert place_sums(EngineConfig("serial", devices=("cuda:1",)), ()) == CUDA[1]
    assert place_sums(EngineConfig(sums="cuda:1"), CUDA[:2]) == CUDA[1]
    assert place_sums(EngineConfig("serial", devices=("cuda",)), ()) == CUDA[0]
    assert place_sums(EngineConfig(devices=("cuda",), sums="cpu"), ()) == CPU


@pytest.mark.usefixtures("two_gpus")
def test_examples_lie_on_a_device_where_half_of_it_holds_them_for_all() -> None:
    assert data_fits(500, CUDA[0], 1)
    assert not data_fits(501, CUDA[0], 1)
    assert not data_fits(500, CUDA[0], 2)
    assert data_fits(250, CUDA[0], 2)
    assert not data_fits(1, CPU, 1), "there they are mapped"


@pytest.mark.usefixtures("two_gpus")
def test_devices_of_two_kinds_and_numbers_they_lack_are_refused() -> None:
    with pytest.raises(ConfigError, match="cpu and cuda round differently"):
        pick_devices(["cuda:0", "cpu"])
    with pytest.raises(ConfigError, match="'bf16': cuda:0 is of a generation before"):
        check_precision("bf16", CUDA[:2])
    check_precision("bf16", CUDA[1:2])
    check_precision("fp16", CUDA[:2])
    for precision, remedy in (("fp16", "take bf16"), ("tf32", "take float32 or bf16")):
        with pytest.raises(ConfigError, match=f"'{precision}': cpu .*{remedy}"):
            check_precision(precision, [CPU])


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"devices": ["auto", "cpu"]}, "name it alone"),
        ({"devices": []}, "name a device"),
        ({"name": "serial", "devices": ["cpu", "cpu"]}, "one process on one device"),
        ({"name": "serial", "per_device": 2}, "one process on one device"),
        ({"workers": 2, "per_device": 2}, "leave one of them out"),
        ({"device": "cpu", "devices": ["cpu"]}, "earlier name"),
        ({"together": 0}, "engine.together is 0"),
    ],
)
def test_engines_that_cannot_be_are_refused(engine: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_from({"engine": engine})


def test_a_device_may_stand_alone_and_under_its_earlier_name() -> None:
    for engine in ({"device": "cpu"}, {"devices": "cpu"}, {"devices": ["cpu"]}):
        assert config_from({"engine": engine}).engine == EngineConfig(devices=("cpu",))


@pytest.mark.usefixtures("forked_workers")
def test_workers_on_several_devices_give_the_weights_of_one_process(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    engines: list[dict[str, Any]] = [
        {"name": "serial", "devices": "cpu", "sums": "cpu"},
        {"name": "workers", "devices": ["cpu", "cpu", "cpu"]},
    ]
    runs = [
        train(quick | {"rounds": 2, "engine": engine}, tmp_path / str(number))
        for number, engine in enumerate(engines)
    ]
    assert state_sha256(runs[0].state) == state_sha256(runs[1].state)


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_repeats_unless_told_otherwise_and_the_process_is_left_as_it_was() -> None:
    cudnn = torch.backends.cudnn

    def told() -> tuple[bool, ...]:
        repeats = torch.are_deterministic_algorithms_enabled()
        return cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, repeats

    before = told()
    with tuned_for(RunConfig()):
        assert told() == (True, False, False, True)
    settings = {"engine": {"deterministic": False}, "local": {"precision": "tf32"}}
    with tuned_for(config_from(settings)):
        assert told() == (False, True, True, False)
    with tuned_for(config_from({"engine": {"devices": "cpu"}})):
        assert told() == before
    assert told() == before


def test_pieces_come_in_their_order() -> None:
    pieces = [{"a": torch.full((2,), number)} for number in range(3)]
    found = [int(piece["a"][0]) for piece in fetched(iter(pieces), CPU)]
    assert found == [0, 1, 2]
    assert in_main_memory(pieces[0])["a"] is pieces[0]["a"]
