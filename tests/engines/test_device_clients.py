"""Which clients train in ExecuTorch, and what is refused."""

from typing import Any

import pytest

from nefl.config import EngineConfig
from nefl.config.reading import config_from, with_settings
from nefl.engines.device_clients import trains_on_device
from nefl.engines.flower.node.site_client import _as_the_node_trains
from nefl.errors import ConfigError
from nefl.running.assembly import assemble, settings_checksum


def test_a_share_of_clients_lies_evenly_among_all() -> None:
    def chosen(share: float) -> list[int]:
        engine = EngineConfig(client="executorch", client_share=share)
        return [client for client in range(12) if trains_on_device(engine, client)]

    assert chosen(1.0) == list(range(12))
    assert chosen(0.5) == [1, 3, 5, 7, 9, 11]
    assert chosen(0.25) == [3, 7, 11]
    assert not trains_on_device(EngineConfig(), 1)
    for share in (0.0, 1.5):
        with pytest.raises(ConfigError, match="engine.client_share"):
            EngineConfig(client="executorch", client_share=share)


REFUSED: dict[str, dict[str, Any]] = {
    "local.optimizer 'adam'": {"local.optimizer": "adam"},
    "clipped to 2.0": {"local.clip_norm": 2.0},
    "clipped to 1.0.*set local.clip_norm to 0": {"model.method": "heterofl"},
    "'fedprox' follows Proximal": {"model.method": "fedprox"},
    "'scaffold' follows ControlVariates": {"model.method": "scaffold"},
    "'depthfl-sd' follows Mutual": {"model.method": "depthfl-sd", "model.ratios": [0.4, 1.0]},
    "'nefl-w-within' follows SmallestWithin": {"model.method": "nefl-w-within"},
    "'fjord-od' draws a width": {"model.method": "fjord-od"},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_the_runtime_cannot_do_is_refused(quick: dict[str, Any], reason: str) -> None:
    values = with_settings(quick, {"engine.client": "executorch", **REFUSED[reason]})
    with pytest.raises(ConfigError, match=f"engine.client 'executorch': .*{reason}"):
        assemble(config_from(values))


def test_who_trains_in_executorch_is_part_of_a_runs_identity(quick: dict[str, Any]) -> None:
    def checksum(**engine: Any) -> str:
        return settings_checksum(config_from({**quick, "engine": engine}))

    plain = checksum(name="serial")
    assert checksum(name="workers", threads=2) == plain
    half = checksum(client="executorch", client_share=0.5)
    assert len({plain, half, checksum(client="executorch")}) == 3
    # Where programs lie does not matter: they were made for this run or are refused.
    assert checksum(client="executorch", client_share=0.5, programs="x") == half


def test_a_node_says_what_it_trains_with(quick: dict[str, Any]) -> None:
    plain = config_from(quick)
    device = config_from(with_settings(quick, {"engine.client": "executorch"}))

    def engine(run: Any, **node: object) -> tuple[object, ...]:
        found = _as_the_node_trains(run, node).engine
        return found.client, found.client_share, found.programs

    assert engine(plain) == ("torch", 1.0, None)
    assert engine(plain, runtime="executorch", programs="p") == ("executorch", 1.0, "p")
    assert engine(device) == ("executorch", 1.0, None)
    assert engine(device, programs="p") == ("executorch", 1.0, "p")
    assert engine(device, runtime="torch") == ("torch", 1.0, None)
    with pytest.raises(ConfigError, match="runtime 'tflite' in the node config"):
        engine(plain, runtime="tflite")
