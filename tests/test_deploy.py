"""The files of a deployment, read without starting anything."""

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from flwr.cli.app import typer_click_object
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

from nefl.cli.commands import load_command
from nefl.engines.flower.programs.environment import QUIET

from .deploy_files import DEPLOY, PAGE, ROOT, commands, compose, unit

UNITS = ("nefl-superlink.service", "nefl-node.service")


def accept(words: list[str]) -> None:
    """See that the program takes these words; it is not run."""
    program, *rest = words
    try:
        if program == "flower-superlink":
            _parse_args_run_superlink().parse_args(rest)
        elif program == "flower-supernode":
            _parse_args_run_supernode().parse_args(rest)
        else:
            _accept_by_click(typer_click_object if program == "flwr" else nefl_command(rest), rest)
    except (SystemExit, click.ClickException) as error:
        raise AssertionError(f"{shlex.join(words)}: {error}") from None


def nefl_command(words: list[str]) -> click.Group:
    """Return nefl's command line, with the command that is meant in full."""
    return click.Group(commands={words[0]: load_command(words[0])})


def _accept_by_click(command: Any, words: list[str]) -> None:
    while hasattr(command, "commands"):
        assert words, "a command is missing"
        assert words[0] in command.commands, f"there is no command {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    command.make_context(command.name, list(words))


@pytest.mark.parametrize("page", [PAGE, ROOT / "docs/flower.md"], ids=lambda page: page.name)
def test_commands_on_the_pages_are_those_of_the_programs(page: Path) -> None:
    found = commands(page)
    assert len(found) > 5
    for words in found:
        accept([word for word in words if word not in ("…", "...")])


def test_a_command_that_does_not_exist_is_found() -> None:
    for wrong in (["nefl", "flower", "keyz", "x"], ["flower-supernode", "--super", "x", "--hots"]):
        with pytest.raises(AssertionError):
            accept(wrong)


def test_containers_run_commands_that_exist() -> None:
    read = compose()
    own = {name: s for name, s in read["services"].items() if s["image"] == "nefl"}
    assert set(own) == {"superlink", "node-0", "node-1"}
    for service in own.values():
        accept(service["command"])
        assert service["restart"] == "always"
        assert service["env_file"] == "flower.env"
        assert service["build"] == {"context": "..", "dockerfile": "deploy/Dockerfile"}
        probe = service["healthcheck"]["test"]
        assert probe[:3] == ["CMD", "python", "/opt/nefl/health.py"]
    for service in read["services"].values():
        for volume in service["volumes"]:
            source, target = volume.split(":")[:2]
            assert target.startswith("/")
            named = source in read["volumes"]
            made = source in ("./app", "./runs") or source.startswith("./keys")
            assert named or made or (DEPLOY / source).exists(), volume
    # Nobody outside reaches the SuperLink but through the gate.
    assert own["superlink"]["networks"] == ["inside"]
    assert read["networks"]["inside"] == {"internal": True}
    assert [n for n, s in read["services"].items() if "ports" in s] == ["gate"]


@pytest.mark.parametrize("name", UNITS)
def test_units_run_commands_that_exist(name: str) -> None:
    read = unit(name)
    service = read["Service"]
    path, *words = shlex.split(service["ExecStart"])
    assert path.startswith("/opt/nefl/bin/")
    accept([Path(path).name, *words])
    assert service["Restart"] == "always"
    # Homes are closed to it and all else is read-only: what it writes has a place.
    assert (service["ProtectSystem"], service["ProtectHome"]) == ("strict", "yes")
    written = dict(word.split("=") for word in service["Environment"].split())
    assert written.keys() == {"FLWR_HOME", "NEFL_CACHE"}
    assert all(w.startswith(f"/var/lib/{service['StateDirectory']}/") for w in written.values())
    assert read["Install"]["WantedBy"] == "multi-user.target"


def test_units_and_containers_start_the_same() -> None:
    services = compose()["services"]
    for service, name in zip((services["superlink"], services["node-0"]), UNITS, strict=True):
        words = shlex.split(unit(name)["Service"]["ExecStart"])
        flags = {word for word in words if word.startswith("--")}
        assert flags == {w.split("=")[0] for w in service["command"] if w.startswith("--")}


def test_the_image_is_built_from_what_is_here() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    instructions = [line.split(maxsplit=1) for line in lines if line and line[0] != "#"]
    known = {"FROM", "RUN", "COPY", "USER", "WORKDIR", "ENV"}
    assert {name for name, _ in instructions} <= known
    copied = [rest.split()[:-1] for name, rest in instructions if name == "COPY"]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    for source in (each for some in copied for each in some):
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored
    assert instructions[0] == ["FROM", "python:3.11-slim"]
    assert ["USER", "nefl"] in instructions  # not root


def test_nothing_phones_home_and_nothing_is_fetched_from_a_named_host() -> None:
    lines = (DEPLOY / "flower.env").read_text().splitlines()
    assert dict(line.split("=") for line in lines if line[0] != "#") == QUIET
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            hosts = re.findall(r"https?://([\w.-]+)", path.read_text())
            assert set(hosts) <= {"localhost", "127.0.0.1", "superlink"}, path


def test_the_gate_lets_nodes_through_and_nothing_else() -> None:
    text = (DEPLOY / "nginx.conf").read_text()
    locations = dict(re.findall(r"location (\S+) \{\s*(.*?)\s*\}", text, re.DOTALL))
    assert set(locations) == {"/v1/fleet/", "/"}
    assert locations["/"] == "return 403;"
    assert text.count("{") == text.count("}")
