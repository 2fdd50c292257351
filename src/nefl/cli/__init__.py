"""The command `nefl`: one module for each group of commands."""

from nefl.cli.app import main

__all__ = ["main"]
