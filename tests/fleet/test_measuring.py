"""Entries of devices: measured here, or as the nodes of a run told."""

import json
from pathlib import Path

import pytest

from nefl.errors import ConfigError, RunError
from nefl.fleet.kinds import read_fleet
from nefl.fleet.measuring import (
    MeasuredDevice,
    Probe,
    entries_text,
    measure_bandwidth,
    measure_device,
    reported_devices,
)
from nefl.nesting.signature import Signature


def test_a_device_measures_itself_and_is_read_back(tmp_path: Path) -> None:
    found = measure_device(
        'the "lab" phone', "resnet8", Signature((1, 8, 8), 10),
        batch_size=4, memory=2e8, bandwidth=1e6,
    )  # fmt: skip
    assert len(found.probes) == 3
    assert found.macs_per_second == min(probe.macs_per_second for probe in found.probes) > 0
    assert found.memory == pytest.approx(2e8 / found.overhead)
    text = entries_text([found], "a trial")
    (tmp_path / "fleet.toml").write_text(text + entries_text([replace_name(found)], "another"))
    first, second = read_fleet(tmp_path / "fleet.toml").devices
    assert (first.name, second.name) == ('the "lab" phone', "other")
    assert first.macs_per_second == pytest.approx(found.macs_per_second, rel=1e-3)
    assert first.inference_macs_per_second == pytest.approx(
        found.inference_macs_per_second, rel=1e-3
    )


def replace_name(device: MeasuredDevice) -> MeasuredDevice:
    return MeasuredDevice("other", device.probes, device.memory, 1.0, device.bandwidth)


def test_what_was_not_measured_is_asked_for(tmp_path: Path) -> None:
    device = MeasuredDevice("a\nb", (Probe("x", 5.0),), 100.0)
    (tmp_path / "fleet.toml").write_text(entries_text([device], "a trial"))
    with pytest.raises(ConfigError, match=r"devices\.0\.bandwidth is missing"):
        read_fleet(tmp_path / "fleet.toml")
    with pytest.raises(ConfigError, match="begins with https"):
        measure_bandwidth("file:///etc/hosts")


def test_nodes_of_a_run_are_entries_too(digits_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_bytes((digits_run / "config.json").read_bytes())
    facts = json.loads((digits_run / "facts.json").read_text())
    alone = [price["train_macs"] for price in facts["submodels"]]
    for price in facts["submodels"]:
        price["train_macs"] *= (
            2  # as noted where members are trained within, which nodes do not time
        )
    (run / "facts.json").write_text(json.dumps(facts))
    with pytest.raises(RunError, match="no node timed its submodels"):
        reported_devices(run)
    events = [
        {"event": "joined", "client": 0, "name": "", "memory": 1000, "step_seconds": []},
        {"event": "joined", "client": 1, "name": "", "memory": 1000, "step_seconds": ["x"]},
        {"event": "joined", "client": 2, "name": "pi", "memory": 1000, "step_seconds": [0.5, 1.0]},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    (found,) = reported_devices(run, bandwidth=7.0)
    assert (found.name, found.memory, found.bandwidth) == ("pi", 800.0, 7.0)
    assert found.macs_per_second == min(8 * alone[0] / 0.5, 8 * alone[1] / 1.0)
