"""`nefl compare`: runs side by side, seeds gathered, the best in bold."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nefl.cli.terminal import PIPE_WIDTH, Terminal, console_for_tables, say
from nefl.cli.user_files import write_output
from nefl.errors import ConfigError
from nefl.report.reading.folders import read_runs
from nefl.report.tables.comparison import Comparison
from nefl.report.tables.comparison import compare as compare_runs
from nefl.report.tables.formats import to_csv, to_json_text, to_latex, to_markdown
from nefl.report.tables.grids import Cell, Grid, footnotes, grids, wide_grid
from nefl.report.tables.members import member_grids

Format = Literal["terminal", "markdown", "latex", "csv", "json"]
Sort = Literal["worst", "average", "best"]
SUFFIXES: dict[str, Format] = {
    ".md": "markdown",
    ".tex": "latex",
    ".csv": "csv",
    ".json": "json",
    ".txt": "terminal",
}


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs' folders, or folders of them.")
    ],
    paper: Annotated[bool, typer.Option("--paper", help="Published figures beside them.")] = False,
    target: Annotated[
        list[float] | None,
        typer.Option(
            help="Count rounds until the average reaches it, as in 0.8 for 80 %; may be repeated."
        ),
    ] = None,
    wide: Annotated[
        bool, typer.Option("--wide", help="One table, partitions and models side by side.")
    ] = False,
    members: Annotated[
        bool, typer.Option("--members", help="A column for each submodel instead.")
    ] = False,
    sort: Annotated[Sort | None, typer.Option(help="Order the rows by it, best first.")] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="How to write it; by the file's name.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A file to write to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Set runs side by side: worst, average and best submodel, mean and spread over seeds."""
    targets = target or []
    chosen = _format(form, out, as_json=as_json)
    if members:
        _refuse_beside_members({"--wide": wide, "--target": bool(targets), "--paper": paper})
    found, refused = read_runs(runs)
    comparison = compare_runs(found, targets=targets, paper=paper, sort=sort or "", members=members)
    left_out = tuple(f"left out: {reason}" for reason in refused)
    comparison = Comparison(**{**comparison.__dict__, "notes": comparison.notes + left_out})
    tables = [wide_grid(comparison)] if wide else grids(comparison)
    if members:
        tables = member_grids(comparison)
    if chosen == "terminal" and out is None:
        show(comparison, tables, console_for_tables())
        return
    text = write(comparison, tables, chosen)
    if out is None:
        say(text, nl=False)
    else:
        write_output(out, text)


def _refuse_beside_members(given: Mapping[str, bool]) -> None:
    """Refuse what a table of every submodel has no place for."""
    for option, is_given in given.items():
        if is_given:
            raise ConfigError(
                f"{option} and --members: a table with a column for each submodel has no place for "
                f"{option}; leave one out"
            )


def _format(form: Format | None, out: Path | None, *, as_json: bool) -> Format:
    if as_json:
        return "json"
    if form is not None:
        return form
    if out is None:
        return "terminal"
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"{out}: give a name that ends with {', '.join(SUFFIXES)}, or --format")
    return SUFFIXES[out.suffix]


def write(comparison: Comparison, tables: Sequence[Grid], form: Format) -> str:
    """Write a comparison in one of the formats."""
    if form == "terminal":
        console = Terminal(file=io.StringIO(), width=PIPE_WIDTH, record=True)
        show(comparison, tables, console)
        return console.export_text()
    if form == "json":
        return to_json_text(comparison)
    if form == "csv":
        return to_csv(comparison)
    return (to_latex if form == "latex" else to_markdown)(comparison, tables)


def show(comparison: Comparison, tables: Sequence[Grid], console: Console) -> None:
    """Print the tables and what must be known to read them."""
    if comparison.shared:
        console.print(Text(comparison.shared))
    for grid in tables:
        console.print(_table(grid, comparison))
    for note in footnotes(comparison):
        console.print(Text(f"- {note}"), soft_wrap=True)


def _table(grid: Grid, comparison: Comparison) -> Table:
    title = Text(grid.title) if grid.title and grid.title != comparison.shared else None
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
    groups = [text for text, span in grid.groups for _ in range(span)] or [""] * len(grid.headings)
    for number, heading in enumerate(grid.headings):
        told = f"{groups[number]}\n{heading}" if grid.groups else heading
        table.add_column(Text(told), justify="right" if number else "left", no_wrap=number > 0)
    for row in grid.rows:
        table.add_row(*map(_text, row))
    return table


def _text(cell: Cell) -> Text:
    return Text(cell.text, style="bold" if cell.bold else "")
