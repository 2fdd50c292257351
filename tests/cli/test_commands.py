"""Commands are imported when they are called, and help says what they say."""

import subprocess
import sys

import click
import pytest
import typer

from nefl.cli.app import app
from nefl.cli.commands import COMMANDS, load_command

WITHOUT_TORCH = [["--version"], ["--help"], ["recipes"], ["recipes", "digits"], ["compare", "-h"]]


@pytest.mark.parametrize("command", WITHOUT_TORCH, ids=" ".join)
def test_what_needs_no_torch_loads_none(command: list[str]) -> None:
    script = (
        "import sys, contextlib\n"
        "from nefl.cli.app import app\n"
        f"with contextlib.suppress(SystemExit): app({command!r})\n"
        "print('loaded:', sorted({'torch', 'sklearn', 'flwr'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("loaded: []\n")


def test_help_is_that_of_the_commands() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    for name in COMMANDS:
        shown, real = group.commands[name], load_command(name)
        assert shown.help == real.help
        assert shown.get_short_help_str() == real.get_short_help_str()
