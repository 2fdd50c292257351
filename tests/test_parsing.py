"""JSON and TOML of others: whatever is wrong with it is one kind of error, and bounded."""

import json
from pathlib import Path

import numpy as np
import pytest

from nefl.artifacts.identity import check_unchanged
from nefl.artifacts.notes import read_log
from nefl.artifacts.summary import averages, rounds_of, summarise
from nefl.config.reading import config_from, read_config
from nefl.data.partition import partition_clients
from nefl.errors import ConfigError, DataError, RunError
from nefl.methods import make_family
from nefl.parsing import MAX_DEPTH, parse_json, parse_toml
from nefl.tasks.metrics import METRICS

DEEP = "[" * 100_000


def test_nesting_is_bounded() -> None:
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 900, 100_000):
        with pytest.raises(ValueError, match="levels|Expecting"):
            parse_json("[" * depth + "]" * depth)
        with pytest.raises(ValueError, match="levels|Invalid"):
            parse_toml("a = " + "[" * depth + "]" * depth)


@pytest.mark.parametrize("text", ["a = " + DEEP, "a = " + "{a=" * 100_000, "a = 1\n[a.b]"])
def test_a_recipe_of_brackets_is_a_config_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="r.toml"):
        config_from(read_config(path), str(path))
    with pytest.raises(ConfigError, match=r"rounds is .{1,300}$"):
        config_from({"rounds": "x" * 10**6})


def test_registry_partition_and_identity_too(tmp_path: Path) -> None:
    from nefl.engines.flower.server.registry import read_registry

    (tmp_path / "identity.json").write_text(DEEP)
    with pytest.raises(RunError, match="damaged"):
        check_unchanged(tmp_path, {"model": "x"})
    (tmp_path / "registry.toml").write_text("a = " + DEEP)
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_registry(str(tmp_path / "registry.toml"), 5, 2, 2)
    (tmp_path / "lists.json").write_text(DEEP)
    with pytest.raises(DataError, match="cannot be read as JSON"):
        partition_clients(np.zeros(9, np.int64), 2, "list", path=tmp_path / "lists.json")


def test_log_lines_of_other_types_are_passed_over(tmp_path: Path) -> None:
    sound: dict[str, object] = {
        "event": "round",
        "round": 2,
        "metrics": {"accuracy": [0.5, 0.7]},
        "trained": {"1": 3},
    }
    strange: list[dict[str, object]] = [
        {"metrics": "x"}, {"metrics": {"accuracy": ["?"]}}, {"round": [1]},
        {"round": 10**30, "trained": 7},
        {"trained": {"a": 1}}, {"bytes_up": {}}, {"simulated": {"nested": 1}}, {"failures": 5},
        {"bytes_down": "x"}, {"wall_seconds": [1]}, {"event": None},
    ]  # fmt: skip
    lines = [DEEP, *[json.dumps(sound | change) for change in strange], json.dumps(sound)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert len(list(read_log(tmp_path))) == len(strange) + 1
    (found,) = rounds_of(tmp_path, 9)
    assert (found["round"], found["metrics"], found["trained"]) == (
        2,
        {"accuracy": (0.5, 0.7)},
        {1: 3},
    )
    assert averages(tmp_path, 9, "accuracy") == pytest.approx([0.6])


def test_numbers_that_are_written_as_text_are_numbers_afterwards(tmp_path: Path) -> None:
    event = {
        "event": "round",
        "round": "1",
        "trained": {"1": "2"},
        "wall_seconds": "3",
        "simulated": dict.fromkeys(("nested", "full", "strong_only", "strong_clients"), "1")
        | {"sat_out": 0},
    }
    (tmp_path / "metrics.jsonl").write_text(json.dumps(event) + "\n")
    family = make_family("resnet8", "nefl-wd")
    found = summarise(tmp_path, family, family.initial_state(0), METRICS["accuracy"])
    assert found["rounds"] == 0
    (entry,) = rounds_of(tmp_path, 1)
    assert (entry["round"], entry["trained"], entry["wall_seconds"]) == (1, {1: 2}, 3.0)
