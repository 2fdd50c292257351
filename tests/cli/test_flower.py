"""`nefl flower`: what it writes, and what it refuses."""

import ast
import json
import stat
import tomllib
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.cli.config_utils import load_and_validate
from typer.testing import CliRunner

from nefl import ConfigError, RunError
from nefl.cli.app import app
from nefl.engines.flower.programs.certificates import _write_new
from nefl.engines.flower.server.run_settings import read_run_settings


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["flower", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_init_writes_an_app_that_flower_and_nefl_take(tmp_path: Path) -> None:
    folder = tmp_path / "My first app"
    run("init", str(folder))
    content = tomllib.loads((folder / "pyproject.toml").read_text())
    config, warnings = load_and_validate(folder / "pyproject.toml")
    assert config["project"]["name"] == "my-first-app"
    assert not warnings
    for name in ("server_app", "client_app"):
        ast.parse((folder / "my_first_app" / f"{name}.py").read_text())
    flat: dict[str, object] = {}
    for key, value in content["tool"]["flwr"]["app"]["config"].items():
        flat |= _flat(key, value)
    settings = read_run_settings(flat)
    assert settings.config.clients.count == 20
    assert settings.config.engine.flower.registry is None
    assert settings.out is None
    with pytest.raises(RunError, match="not empty"):
        run("init", str(folder))


def _flat(key: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        return {key: value}
    found: dict[str, object] = {}
    for name, inner in value.items():
        found |= _flat(f"{key}.{name}", inner)
    return found


def test_run_config() -> None:
    found = read_run_settings(
        {
            "recipe": "digits",
            "rounds": 3,
            "settings": "local.momentum=0.9 server.keep=3",
            "out": "x",
        }
    )
    assert (found.config.rounds, found.config.local.momentum) == (3, 0.9)
    assert found.config.server.keep == 3
    assert found.out == Path("x")
    with pytest.raises(ConfigError, match="which run"):
        read_run_settings({"resume": True})
    with pytest.raises(ConfigError, match="not a setting"):
        read_run_settings({"local.epoch": 1})


def test_keys(tmp_path: Path) -> None:
    run(
        "keys", str(tmp_path / "k"), "--host", "fl.example.org", "--host", "10.0.0.1", "--node", "a"
    )
    certificate = x509.load_pem_x509_certificate((tmp_path / "k" / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "127.0.0.1"]
    authority = x509.load_pem_x509_certificate((tmp_path / "k" / "ca.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    for secret in ("server.key", "a"):
        assert stat.S_IMODE((tmp_path / "k" / secret).stat().st_mode) == 0o600
    load_ssh_public_key((tmp_path / "k" / "a.pub").read_bytes())
    with pytest.raises(RunError, match="exists"):
        run("keys", str(tmp_path / "k"), "--host", "other")


@pytest.mark.parametrize("name", ["../../x", "a/b", "..", "", "-x", "a b", "\x1b[1m", "x" * 65])
def test_a_nodes_name_is_a_plain_one(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "deep" / "keys"
    with pytest.raises(ConfigError, match="a node's name has 1 to 64"):
        run("keys", str(folder), "--host", "h", "--node", "good", f"--node={name}")
    assert not any(tmp_path.iterdir())  # names are looked at before anything is written


def test_simulate_wants_an_app(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no Flower app"):
        run("simulate", str(tmp_path))


@pytest.mark.parametrize("name", ["ca.crt", "server.pem", "server.key", "a", "a.pub"])
def test_keys_are_not_written_through_links(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "k"
    folder.mkdir()
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=f"{name}: exists"):
        run("keys", str(folder), "--host", "h", "--node", "a")
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(RunError, match=f"{name}: cannot be written"):
        _write_new(folder / name, b"secret", 0o600)  # as if the link came just now
    assert not (tmp_path / "elsewhere").exists()


def test_status_lists_a_runs_nodes(tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    with pytest.raises(RunError, match="is no run's folder"):
        run("status", str(run_folder))
    (run_folder / "config.json").write_text("{}")
    with pytest.raises(RunError, match="tells of no nodes"):
        run("status", str(run_folder))
    events = [
        {"event": "joined", "node": "7", "name": "kitchen", "client": 0, "tier": 1, "largest": 2},
        {"event": "refused", "node": "8", "name": "", "reason": "[red]another family"},
    ]
    (run_folder / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    shown = " ".join(run("status", str(run_folder)).split())
    assert "kitchen 0 1 2 there" in shown
    assert "8: [red]another family" in shown
    listed = json.loads(run("status", str(run_folder), "--json"))
    assert [node["state"] for node in listed] == ["there", "refused"]


def test_a_nodes_runtime_is_part_of_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        "nefl.engines.flower.programs.node.keep_node",
        lambda options, _say: asked.append(options.node_config),
    )
    there = ["flower", "node", "--superlink", "127.0.0.1:9092", "--insecure"]
    for more in (
        ["--runtime", "executorch"],
        ["--runtime", "torch", "--node-config", "partition-id=0"],
        ["--node-config", "partition-id=0"],
    ):
        result = CliRunner().invoke(app, [*there, *more])
        assert result.exit_code == 0, result
    assert asked == ['runtime="executorch"', 'partition-id=0 runtime="torch"', "partition-id=0"]
    twice = [*there, "--runtime", "torch", "--node-config", 'runtime="executorch"']
    with pytest.raises(ConfigError, match="--node-config has a runtime too; give one of them"):
        CliRunner().invoke(app, twice, catch_exceptions=False)
