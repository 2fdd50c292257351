"""`nefl report`: runs as one page that needs nothing else."""

from pathlib import Path
from typing import Annotated

import typer

from nefl.cli.terminal import say
from nefl.cli.user_files import write_output
from nefl.report.page.make import make_page
from nefl.report.reading.folders import read_runs
from nefl.wording import counted, show_bytes


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs' folders, or folders of them.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page's file.")] = Path(
        "report.html"
    ),
) -> None:
    """Write one page on runs, with figures and tables; it opens without a network."""
    found, refused = read_runs(runs)
    for reason in refused:
        say(f"left out: {reason}", err=True)
    page = make_page(found, refused)
    write_output(out, page)
    say(f"{out} ({show_bytes(len(page.encode()))}, {counted(len(found), 'run')})")
