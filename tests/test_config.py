import json
import math
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from nefl.client.schedule import learning_rate
from nefl.config import RunConfig, ScheduleConfig
from nefl.config.reading import config_from, parse_setting, read_config, with_settings
from nefl.errors import ConfigError


def test_defaults_are_the_papers_protocol() -> None:
    config = RunConfig()
    assert (config.rounds, config.clients.count, config.clients.per_round) == (500, 100, 10)
    local = config.local
    assert (local.epochs, local.batch_size, local.learning_rate) == (5, 32, 0.1)
    assert (local.optimizer, local.momentum, local.weight_decay) == ("sgd", 0, 0)
    assert config.server.weighting == "equal"
    assert config.clients.spread == 2


def test_a_config_survives_json() -> None:
    device = {"name": "phone", "memory": 1e9, "macs_per_second": 1e9, "bandwidth": 1e6}
    config = config_from(
        {
            "model": {"ratios": [0.5, 1]},
            "clients": {"capability": "devices", "devices": [device]},
            "data": {"options": {"noise": 0.5}},
        }
    )
    assert config_from(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"round": 5}, "round is not a setting; did you mean 'rounds'"),
        ({"local": {"epoch": 1}}, "local.epoch is not a setting; did you mean 'epochs'"),
        ({"local": {"zzz": 1}}, "known are epochs"),
        ({"clients": {"devices": [{"nme": "x"}]}}, "clients.devices.0"),
        ({"local": {"epochs": 0}}, "local.epochs is 0"),
        ({"local": {"epochs": "many"}}, "local.epochs is 'many'"),
        ({"local": {"learning_rate": math.nan}}, "local.learning_rate"),
        ({"local": {"learning_rate": -1}}, "local.learning_rate is -1"),
        ({"local": {"momentum": 1.0}}, "local.momentum"),
        ({"local": 5}, "local is 5"),
        ({"rounds": 0}, "rounds is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"clients": {"count": 0}}, "clients.count is 0"),
        ({"clients": {"per_round": 101}}, "1 to clients.count, 100"),
        ({"clients": {"capability": "devices"}}, "needs at least one"),
        ({"partition": {"kind": "list"}}, "partition.file"),
        ({"partition": {"kind": "iid", "file": "x"}}, "partition.file"),
        ({"partition": {"alpha": 0}}, "partition.alpha"),
        (
            {
                "partition": {"kind": "tiers"},
                "clients": {
                    "capability": "devices",
                    "devices": [{"name": "d", "memory": 1, "macs_per_second": 1, "bandwidth": 1}],
                },
            },
            "of which devices know nothing; set clients.capability",
        ),
        ({"schedule": {"milestones": [0.5, 1.5]}}, "schedule.milestones"),
        ({"server": {"quorum": 0}}, "server.quorum"),
        ({"server": {"keep": 0}}, "server.keep"),
        ({"engine": {"workers": -1}}, "engine.workers"),
        ({"engine": {"name": "spark"}}, "engine.name is 'spark'"),
        ({"engine": {"name": "serial", "workers": 2}}, "the serial engine has none"),
    ],
)
def test_wrong_settings_are_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match="x.toml: ") as caught:
        config_from(values, "x.toml")
    assert words in str(caught.value)


def test_settings_by_dotted_keys() -> None:
    values = with_settings({"local": {"epochs": 3}}, {"local.batch_size": 4, "rounds": 7})
    assert values == {"local": {"epochs": 3, "batch_size": 4}, "rounds": 7}
    with pytest.raises(ConfigError, match="rounds holds a value"):
        with_settings({"rounds": 7}, {"rounds.more": 1})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("local.epochs=2", ("local.epochs", 2)),
        ("model.ratios=[0.5, 1]", ("model.ratios", [0.5, 1])),
        ("data.root=/some where", ("data.root", "/some where")),
        ("a=true", ("a", True)),
        ("a=", ("a", "")),
    ],
)
def test_settings_from_the_command_line(text: str, expected: tuple[str, Any]) -> None:
    assert parse_setting(text) == expected


@pytest.mark.parametrize("text", ["epochs", "=3", " =3"])
def test_a_setting_needs_a_key(text: str) -> None:
    with pytest.raises(ConfigError, match="key=value"):
        parse_setting(text)


def test_odd_values_are_errors_not_accidents() -> None:
    assert parse_setting("seed=" + "9" * 5000)[0] == "seed"
    dated = with_settings({"about": date(2020, 1, 1)}, {"rounds": 3})
    with pytest.raises(ConfigError, match="about is"):
        config_from(dated)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere.toml: cannot be read"):
        read_config(tmp_path / "nowhere.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("rounds = = 3")
    with pytest.raises(ConfigError, match="broken.toml: is not valid toml"):
        read_config(broken)
    listed = tmp_path / "listed.json"
    listed.write_text("[1]")
    with pytest.raises(ConfigError, match="listed.json: expected a table"):
        read_config(listed)
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'about = "\xe9"')
    with pytest.raises(ConfigError, match="latin.toml: is not valid"):
        read_config(latin)


def rates(schedule: ScheduleConfig, rounds: int, steps: int = 10) -> list[float]:
    return [learning_rate(schedule, 0.1, rounds, done, steps) for done in range(rounds)]


def test_the_step_schedule_drops_at_half_and_three_quarters() -> None:
    got = rates(ScheduleConfig(), 8)
    assert got == pytest.approx([0.1] * 4 + [0.01] * 2 + [0.001] * 2)
    within = learning_rate(ScheduleConfig(), 0.1, 7, 3.9, 10)
    assert within == pytest.approx(0.1), "one rate through a round"


def test_warm_up_then_cosine() -> None:
    schedule = ScheduleConfig("cosine", warmup_steps=20)
    steps, rounds = 10, 12
    each = [
        learning_rate(schedule, 0.03, rounds, step / steps, steps) for step in range(rounds * steps)
    ]
    assert each[:20] == pytest.approx([0.03 * (i + 1) / 20 for i in range(20)])
    assert each[20] == pytest.approx(0.03)
    assert each[20:] == sorted(each[20:], reverse=True)
    assert each[-1] < 0.0001
    assert each[70] == pytest.approx(0.015)


def test_a_constant_rate() -> None:
    assert rates(ScheduleConfig("constant"), 5) == [0.1] * 5


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"rounds": True}, "rounds is true: give a number"),
        ({"local": {"learning_rate": False}}, "local.learning_rate is false: give a number"),
        ({"server": {"recalibrate": 1}}, "server.recalibrate is 1: give true or false"),
    ],
)
def test_true_is_no_number(values: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        config_from(values)
