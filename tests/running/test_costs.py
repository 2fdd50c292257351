"""What rounds took is noted round by round: members within are not trained in all of them alike."""

from pathlib import Path
from typing import Any

import pytest

from nefl.config.reading import config_from, with_settings
from nefl.errors import RunError
from nefl.estimate.cost import cost_of
from nefl.report.reading.costs import costs_of, macs_spent
from nefl.report.reading.runs import read_run
from nefl.running.assembly import assemble
from nefl.running.lifecycle import resume, train

LATER = {
    "model.method": "within",
    "model.method_options.which": "all",
    "model.method_options.from_round": 3,
    "schedule.name": "constant",
    "rounds": 4,
}
DEVICES = [
    {"name": "small", "memory": 1e9, "macs_per_second": 4e7, "bandwidth": 1e6},
    {"name": "large", "memory": 1e9, "macs_per_second": 1e9, "bandwidth": 1e6},
]


def by_hand(run: Path, settings: dict[str, Any]) -> float:
    """Add up what every counted client ran: in rounds 1 and 2 its own submodel alone."""
    setting = assemble(config_from(settings))
    alone = [profile.macs_total for profile in setting.alone().profiles()]
    total = 0
    for entry in read_run(run).rounds:
        for submodel, clients in entry.clients.items():
            inside = setting.family.members_within(submodel) if entry.number >= 3 else ()
            work = sum(alone[k - 1] for k in (submodel, *inside))
            total += sum(3 * work * int(setting.partition.sizes[c]) for c in clients)
    return float(total)


def test_rounds_are_charged_for_what_was_trained_in_them(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    settings = with_settings(quick, LATER)
    train(settings, tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert macs_spent(run, costs_of(run)) == by_hand(tmp_path / "run", settings)
    setting = assemble(config_from(settings))
    assert cost_of(setting, setting.profiles()).total_macs == by_hand(tmp_path / "run", settings)


def test_so_they_are_where_a_run_was_given_more_rounds(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    settings = with_settings(quick, LATER)
    train(with_settings(settings, {"rounds": 2}), tmp_path / "run")
    resume(tmp_path / "run", rounds=4)
    run = read_run(tmp_path / "run")
    assert macs_spent(run, costs_of(run)) == by_hand(tmp_path / "run", settings)
    longer = assemble(config_from(settings)).profiles()
    assert costs_of(run).profiles == longer


def test_devices_are_not_judged_by_other_costs_than_from_the_start(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    more = {"clients.capability": "devices", "clients.devices": DEVICES, "clients.deadline": 5.0}
    settings = with_settings(quick, LATER | more)
    train(with_settings(settings, {"rounds": 2}), tmp_path / "run")
    with pytest.raises(RunError, match="devices are judged by what a round costs on average"):
        resume(tmp_path / "run", rounds=4)
    assert read_run(tmp_path / "run").summary["rounds"] == 2
    settings["model"]["method_options"]["from_round"] = 1  # the same in all rounds
    train(with_settings(settings, {"rounds": 2}), tmp_path / "other")
    longer = resume(tmp_path / "other", rounds=4).summary
    straight = train(settings, tmp_path / "straight").summary
    assert longer["state_sha256"] == straight["state_sha256"]
