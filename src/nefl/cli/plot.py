"""`nefl plot`: one figure of runs, or of the paper, into a file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from nefl.cli.terminal import say
from nefl.cli.user_files import write_output
from nefl.errors import ConfigError
from nefl.report.figures.by_name import FIGURES
from nefl.report.figures.drawn_run import drawn_runs, left_out
from nefl.report.figures.studies import by_architecture, by_clients, by_method
from nefl.report.figures.toy_ode import toy_ode
from nefl.report.figures.vega import Figure, draw
from nefl.report.reading.folders import read_runs
from nefl.report.reading.runs import Run

OF_GROUPS: dict[str, Callable[[Sequence[Run]], Figure]] = {
    "by-method": by_method,
    "by-architecture": by_architecture,
    "by-clients": by_clients,
}
TOY = "toy-ode"
NAMES = (*FIGURES, *OF_GROUPS, TOY)


def plot(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN...]", help="Runs' folders, or folders of them."),
    ] = None,
    figure: Annotated[
        str, typer.Option("--figure", help=f"One of: {', '.join(NAMES)}.")
    ] = "curves",
    out: Annotated[
        Path, typer.Option("--out", "-o", help="A file: .svg, .png, .pdf, or .json (Vega-Lite).")
    ] = Path("figure.svg"),
    every_run: Annotated[
        bool, typer.Option("--every-run", help="A line for each run instead of means over seeds.")
    ] = False,
) -> None:
    """Draw one figure for a paper; toy-ode needs no run."""
    write_output(out, draw(_figure(figure, runs or [], every_run), out))
    say(out)


def _figure(name: str, paths: Sequence[Path], every_run: bool) -> Figure:
    if name == TOY:
        return toy_ode()
    if name not in NAMES:
        raise ConfigError(f"figure {name!r}: give one of {', '.join(NAMES)}")
    if not paths:
        raise ConfigError(f"figure {name}: is drawn from runs; name at least one run's folder")
    runs, refused = read_runs(paths)
    for reason in refused:
        say(f"left out: {reason}", err=True)
    if name in OF_GROUPS:
        if every_run:
            raise ConfigError(f"figure {name}: shows means over seeds; leave out --every-run")
        figure, gaps = OF_GROUPS[name](runs), []
    else:
        drawn = drawn_runs(runs, every_run=every_run)
        figure = FIGURES[name](drawn)
        gaps = left_out(drawn)
    notes = [*gaps, *figure.notes]
    if not figure.records:
        why = "; ".join(notes) or "no data"
        raise ConfigError(f"figure {name}: these runs have nothing to show in it ({why})")
    for note in notes:
        say(f"note: {note}", err=True)
    return figure
