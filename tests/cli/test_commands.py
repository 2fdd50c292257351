"""Commands are imported when they are called, and help says what they say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from nefl.cli.app import app
from nefl.cli.commands import COMMANDS, load_command
from nefl.running.lifecycle import train

WITHOUT_TORCH = [
    [["--version"]],
    [["--help"], ["compare", "-h"]],
    [
        ["recipes"],
        ["recipes", "digits"],
        ["recipes", "--json", "--method", "nefl-wd", "--source", "Table 3"],
        ["recipes", "--show", "digits"],
        ["recipes", "--model", "resnet0"],
    ],
]
COMPARE = [[], ["--paper"], ["--wide", "--sort", "worst"], ["--target", "0.1"]]
COMPARE += [["--members"], ["--members", "--format", "csv"]]
COMPARE += [["--format", form] for form in ("markdown", "latex", "csv", "json")]


def loaded_by(commands: list[list[str]]) -> tuple[str, str]:
    """Return what commands print and which heavy packages they load, all in one new process."""
    script = (
        "import sys, contextlib\n"
        "from nefl.cli.app import app\n"
        "from nefl.errors import NeflError\n"
        f"for command in {commands!r}:\n"
        "    with contextlib.suppress(SystemExit, NeflError): app(command)\n"
        "print('loaded:', sorted({'torch', 'sklearn', 'flwr'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said, _, loaded = done.stdout.rpartition("loaded: ")
    return said, loaded.strip()


@pytest.mark.parametrize("commands", WITHOUT_TORCH, ids=lambda commands: commands[0][0])
def test_what_needs_no_torch_loads_none(commands: list[list[str]]) -> None:
    said, loaded = loaded_by(commands)
    assert said
    assert loaded == "[]"


@pytest.mark.long
def test_a_family_is_costed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time nothing of it is counted; other questions are."""
    monkeypatch.setenv("NEFL_CACHE", str(tmp_path))
    for subject in (["resnet8", "--input", "1x8x8"], ["digits"]):
        asked = ["profile", *subject, "--json"]
        first, again = loaded_by([asked]), loaded_by([asked])
        assert "torch" in first[1]
        assert again == (first[0], "[]")
    assert "torch" in loaded_by([[*asked, "--batch", "8"]])[1]


def test_training_loads_no_compiler() -> None:
    """It takes longer than all of torch, in every worker."""
    script = (
        "import sys, torch, nefl.engines.jobs, nefl.running.lifecycle\n"
        "from nefl.client.optimiser import make_optimiser\n"
        "from nefl.config import LocalConfig\n"
        "model = torch.nn.Linear(2, 2)\n"
        "descent = make_optimiser(model, LocalConfig())\n"
        "torch.autograd.backward(model(torch.ones(3, 2)).sum())\n"
        "descent.step()\n"
        "from nefl.config.reading import config_from\n"
        "from nefl.engines.tuning import tuned_for\n"
        "with tuned_for(config_from({'engine': {'devices': 'cpu'}})):\n"
        "    pass\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_what_starts_looks_for_garbage_seldom_before_it_loads_torch() -> None:
    script = (
        "import gc, sys\n"
        "from nefl.collecting import SELDOM\n"
        "from nefl.engines import worker\n"
        "from unittest.mock import patch\n"
        "assert gc.get_threshold()[0] < SELDOM, 'importing changes nothing'\n"
        "assert 'torch' not in sys.modules\n"
        "def asked(_place):\n"
        "    raise SystemExit(gc.get_threshold()[0] - SELDOM)\n"
        "sys.argv = ['worker', '0', '0']\n"
        "with patch('nefl.engines.worker.Connection', asked):\n"
        "    worker.main()"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_comparing_runs_loads_no_torch(quick: dict[str, Any], tmp_path: Path) -> None:
    # Trained in this process and compared in another: what the runs noted must be enough.
    for seed in (0, 1):
        train(quick | {"rounds": 1, "seed": seed}, tmp_path / f"seed-{seed}")
    said, loaded = loaded_by([["compare", str(tmp_path), *more] for more in COMPARE])
    assert loaded == "[]"
    assert "digits" in said
    (row,) = json.loads(said[said.index("\n{") :])["rows"]
    assert min(row["macs"]["values"]) > 0, "and yet it is told what they cost"


def test_help_is_that_of_the_commands() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    for name in COMMANDS:
        shown, real = group.get_command(click.Context(group), name), load_command(name)
        assert shown is not None
        assert shown.help == real.help
        assert shown.get_short_help_str() == real.get_short_help_str()


def test_every_public_name_is_there() -> None:
    """The table of contents and the table of homes are one list."""
    import nefl
    import nefl.data

    for package in (nefl, nefl.data):
        assert package.__all__ == list(package._HOMES)
        assert {*package.__all__} <= {*dir(package)}
        assert all(getattr(package, name) is not None for name in package.__all__)
        with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute"):
            getattr(package, "nothing_of_the_kind")  # noqa: B009 -- types know that it is not there
