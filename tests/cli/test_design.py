import json
from pathlib import Path

import pytest

from nefl.config.reading import config_from, read_config
from nefl.running.assembly import assemble

from .conftest import call

FLEET = """
deadline = "20s"
[[devices]]
name = "phone"
share = 3
memory = "1MB"
macs_per_second = "100M"
bandwidth = "1MB"
[[devices]]
name = "server"
memory = "1GB"
macs_per_second = "100G"
bandwidth = "1GB"
"""


def test_a_designed_recipe_runs_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nefl.fleet.fitting.WIDTHS", (0.5, 0.75, 1.0))
    (tmp_path / "fleet.toml").write_text(FLEET)
    given = ["resnet8", "--devices", "fleet.toml", "--method", "nefl-w", "--set", "rounds=1"]
    done = call("design", *given, "-o", "r.toml", "--figure", "f.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "phone: member 1; width 0.75, blocks 1 1 1 would take" in done.stdout
    assert "trained by 25% of the population" in done.stdout
    assert "train it with: nefl train r.toml" in done.stdout
    text = (tmp_path / "r.toml").read_text()
    assert text.startswith("# A family for the devices of fleet.toml:\n# phone (75%): member 1, ")
    config = config_from(read_config(tmp_path / "r.toml"))
    assert [member.width for member in config.model.members] == [0.5, 1.0]
    assert len(assemble(config).family) == 2
    assert json.loads((tmp_path / "f.json").read_text())
    told = json.loads(call("design", *given, "--json", cwd=tmp_path).stdout)
    assert [each["member"] for each in told["devices"]] == [1, 2]
    assert told["config"] == config.to_dict()


def test_what_a_design_refuses(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET.replace('"1MB"\nmacs', '"1KB"\nmacs'))
    for arguments, words in (
        (["resnet8", "--devices", "none.toml"], "none.toml: cannot be read"),
        (["resnet9", "--devices", "fleet.toml"], "model 'resnet9' is unknown"),
        (["resnet8", "--devices", "fleet.toml", "--set", "model.ratios=[1]"], "design decides"),
    ):
        done = call("design", *arguments, "-o", "r.toml", cwd=tmp_path)
        assert done.returncode == 2
        assert words in done.stderr
        assert not (tmp_path / "r.toml").exists()
