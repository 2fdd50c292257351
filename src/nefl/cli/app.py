"""The command line itself, and what every command does with an error."""

import logging
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from nefl.cli.commands import LazyGroup
from nefl.cli.terminal import LogHandler, Terminal, say
from nefl.collecting import collect_seldom
from nefl.errors import NeflError
from nefl.own_code import own_tracebacks

EXIT_BAD_INPUT = 2
LONGEST_ERROR = 4000

app = typer.Typer(
    name="nefl",
    cls=LazyGroup,
    help="Federated learning across unequal devices, with nested submodels of one global model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        say(f"nefl {version('nefl')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and end."
        ),
    ] = False,
) -> None:
    """Keep `nefl` a group of commands."""


def main() -> None:
    """Run the command line. An input's fault is one line on standard error and exit code 2.

    An error of the user's own code keeps its traceback, below that line.
    """
    collect_seldom()
    log = logging.getLogger("nefl")
    if not any(isinstance(handler, LogHandler) for handler in log.handlers):
        log.addHandler(LogHandler())
    try:
        app()
    except NeflError as error:
        text = str(error)  # it may quote a file that holds anything
        if len(text) > LONGEST_ERROR:
            text = f"{text[:LONGEST_ERROR]}… ({len(text)} characters)"
        console = Terminal(stderr=True, soft_wrap=True)
        console.print(f"nefl: error: {text}")
        for trace in own_tracebacks(error):
            console.print(f"\n{trace.rstrip()}", highlight=False)
        sys.exit(EXIT_BAD_INPUT)
    except BrokenPipeError:
        # The reader of our output has gone (`nefl profile … | head`): that is no error.
        sys.stderr.close()
        sys.exit(0)
