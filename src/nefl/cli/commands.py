"""The commands by name, each imported when it is called: help and version load no torch."""

import ast
import importlib
from pathlib import Path
from typing import Any

import click
import typer
from typer.core import TyperGroup

COMMANDS = {
    "train": "nefl.cli.train",
    "resume": "nefl.cli.train",
    "evaluate": "nefl.cli.train",
    "partition": "nefl.cli.train",
    "recipes": "nefl.cli.recipes",
    "profile": "nefl.cli.profile",
    "design": "nefl.cli.design",
    "measure": "nefl.cli.measure",
    "doctor": "nefl.cli.doctor",
    "search": "nefl.cli.search",
    "compare": "nefl.cli.compare",
    "report": "nefl.cli.report",
    "watch": "nefl.cli.watch",
    "plot": "nefl.cli.plot",
    "export": "nefl.cli.export",
    "handoff": "nefl.cli.handoff",
    "predict": "nefl.cli.predict",
    "serve": "nefl.cli.predict",
    "flower": "nefl.cli.flower",
}
"""The module that each command, or group of commands, lives in under its own name."""


class LazyGroup(TyperGroup):
    """A group that knows its commands by name and help, and imports the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: click.Command(name) for name in COMMANDS}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; its help is read from its source when somebody asks for it."""
        found = super().get_command(ctx, cmd_name)
        if found is not None and found.help is None and cmd_name in COMMANDS:
            found.help = _help_of(cmd_name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import what is called."""
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = load_command(args[0])
        return super().resolve_command(ctx, args)


def load_command(name: str) -> click.Command:
    """Return a command of the table, or a group of them."""
    found = getattr(importlib.import_module(COMMANDS[name]), name)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(name)(found)
        found = alone
    command = typer.main.get_command(found)
    command.name = name
    return command


def _help_of(name: str) -> str:
    """Read a command's help from its source: a function's docstring, or the help of a group."""
    path = Path(__file__).with_name(f"{COMMANDS[name].rpartition('.')[2]}.py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node) or ""
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            keywords = (part for part in ast.walk(node) if isinstance(part, ast.keyword))
            return next(str(ast.literal_eval(k.value)) for k in keywords if k.arg == "help")
    raise ValueError(f"{path}: has no command {name}")
