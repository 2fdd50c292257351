"""`nefl watch`: runs as they go on, in the browser or in the terminal."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nefl.cli.terminal import Terminal, say
from nefl.engines.tuning import give_memory_back
from nefl.report.page.live import address_of, make_server
from nefl.report.reading.folders import read_runs
from nefl.report.reading.gathering import METRIC
from nefl.report.reading.runs import Run, mean
from nefl.report.reading.scores import show_score, with_arrow
from nefl.report.tables.comparison import MEASURES
from nefl.wording import show_duration, show_loss

BARS = "▁▂▃▄▅▆▇█"
CURVE = 30
"""Evaluations in the small curve of the terminal."""


def watch(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs' folders, or folders of them.")
    ],
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; any free one if 0.")] = 0,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Show it here, without a browser.")
    ] = False,
    every: Annotated[float, typer.Option(help="Seconds between looks, in the terminal.")] = 2.0,
) -> None:
    """Follow runs while they go on: a page that updates itself, or a table in the terminal."""
    try:
        if terminal:
            _follow(runs, max(0.2, every))
        else:
            give_memory_back()
            server = make_server(runs, port)
            say(f"{address_of(server)} (Ctrl-C ends it)")
            try:
                server.run()  # until Ctrl-C, which it takes for itself
            finally:
                server.close()
    except KeyboardInterrupt:
        pass
    say("no longer watching", err=True)


def _follow(paths: Sequence[Path], every: float) -> None:
    console = Terminal()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            found, _ = read_runs(paths)
            live.update(table_of(found), refresh=True)
            if all(run.status != "running" for run in found):
                return  # nothing will change any more
            time.sleep(every)


def table_of(runs: Sequence[Run]) -> Table:
    """Return the table of the terminal, with the metric as its title if runs share it."""
    metrics = list(dict.fromkeys(with_arrow(run.metric) for run in runs))
    several = len(metrics) > 1
    table = Table(box=box.SIMPLE_HEAD, title=None if several else Text(metrics[0]))
    headings = ["run", "state", "loss", *MEASURES, "average so far", "left"]
    if several:
        headings.insert(headings.index("loss") + 1, METRIC)
    for heading in headings:
        left = heading in ("run", "state", METRIC, "average so far")
        table.add_column(heading, justify="left" if left else "right", overflow="fold")
    for run in runs:
        scores, metric = run.scores, run.metric
        loss = show_loss(run.rounds[-1].loss) if run.rounds else "–"
        table.add_row(
            Text(run.name),
            Text(run.progress),
            loss,
            *([Text(with_arrow(metric))] if several else []),
            show_score(metric, scores[0] if scores else None),
            show_score(metric, mean(scores)),
            show_score(metric, metric.best(scores)),
            curve([mean(entry.scores) for entry in run.evaluated]),
            _left(run),
        )
    return table


def curve(values: Sequence[float]) -> str:
    """Draw the last values as a line of bars, the lowest to the highest."""
    last = [value for value in values if math.isfinite(value)][-CURVE:]
    if not last:
        return ""
    low, span = min(last), max(last) - min(last) or 1.0
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] for value in last)


def _left(run: Run) -> str:
    if run.status != "running" or not run.rounds:
        return ""
    each = mean([entry.seconds for entry in run.rounds])
    return show_duration(each * (run.planned - run.last_round))
