"""`nefl plot`: one figure of runs, or of the paper, into a file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from nefl.cli.terminal import say
from nefl.errors import ConfigError
from nefl.report.datasets import Told
from nefl.report.figures import FIGURES
from nefl.report.output import write_output
from nefl.report.paper import by_architecture, by_clients, by_method, toy_ode
from nefl.report.runs import Run, read_runs
from nefl.report.vega import Figure, draw

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
) -> None:
    """Draw one figure for a paper; toy-ode needs no run."""
    write_output(out, draw(_figure(figure, runs or []), out))
    say(out)


def _figure(name: str, paths: Sequence[Path]) -> Figure:
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
        figure, missing = OF_GROUPS[name](runs), ""
    else:
        told = [Told(run) for run in runs]
        figure = FIGURES[name](told)
        missing = "; ".join(dict.fromkeys(why for each in told for why in each.missing.values()))
    if not figure.records:
        raise ConfigError(
            f"figure {name}: these runs have nothing to show in it ({missing or 'no data'})"
        )
    return figure
