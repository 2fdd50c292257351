"""`nefl search`: the best member for a budget, among all that a trained family has in it."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from nefl.artifacts.notes import to_json
from nefl.artifacts.searched import read_searched
from nefl.cli.progress import ScoredLines
from nefl.cli.terminal import Terminal, console_for_tables, say
from nefl.cli.train import TrustCode, goes_on_later
from nefl.elastic.budget import parse_budget
from nefl.fleet.laboratory import Scored
from nefl.fleet.searching import EXAMPLES, Found, search_run
from nefl.report.figures.search_figures import BEST, search_records
from nefl.wording import show_bytes, show_count


def search(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    fits: Annotated[
        str, typer.Option(help="What it may cost, as in params<2M,macs<50M,memory<2MB,latency<5ms.")
    ],
    population: Annotated[int, typer.Option(help="Members of a generation.")] = 16,
    generations: Annotated[int, typer.Option(help="How many generations there are.")] = 6,
    examples: Annotated[
        int, typer.Option(help="Test examples that are used, half of them to choose.")
    ] = EXAMPLES,
    seed: Annotated[int, typer.Option(help="Where everything random comes from.")] = 0,
    best: Annotated[bool, typer.Option(help="The best checkpoint, not the newest.")] = False,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Find the best member within a budget, trained or not, by cutting and scoring."""
    lines = ScoredLines(Terminal(stderr=True, soft_wrap=True))

    def scored(done: int, total: int, ahead: Scored | None) -> None:
        lines(done, total, "" if ahead is None else f", best {ahead.score:.4f}: {ahead.member}")

    with goes_on_later():
        found = search_run(
            run,
            parse_budget(fits),
            population=population,
            generations=generations,
            examples=examples,
            seed=seed,
            best=best,
            trust_code=trust_code,
            progress=scored,
        )
    if as_json:
        say(to_json(report_of(found), indent=2))
    else:
        _show(found, run)


def report_of(found: Found) -> dict[str, Any]:
    """Return what a search found as plain values."""
    return {
        "metric": found.metric.name,
        "examples": found.examples,
        "best": _plain(found.best) | {"checked": found.checked},
        "scored": [_plain(each) for each in found.scored],
    }


def _plain(scored: Scored) -> dict[str, Any]:
    return {
        "member": scored.member,
        "trained": scored.trained,
        "score": scored.score,
        **asdict(scored.cost),
    }


def _show(found: Found, run: Path) -> None:
    console = console_for_tables()
    table = Table(
        title=f"{len(found.scored)} members within the budget; the best for their cost",
        caption=f"{found.metric.name} on {found.examples} test examples",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    headings = ("member", "params", "MACs", "memory", "latency", found.metric.name)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "member" else "right")
    ahead = {r["member"] for r in search_records(read_searched(run)) if r["state"] == BEST}
    by_cost = sorted(found.scored, key=lambda each: each.cost.macs)
    for each in by_cost:
        if each.member in ahead or each == found.best or each.trained:
            cost = each.cost
            table.add_row(
                each.member + (f" (submodel {each.trained})" if each.trained else ""),
                show_count(cost.params),
                show_count(cost.macs),
                show_bytes(cost.memory),
                "" if cost.latency is None else f"{cost.latency * 1e3:.2f} ms",
                f"{each.score:.4f}",
            )
    console.print(table)
    best = found.best
    worth = f"{found.metric.name} {best.score:.4f}, and {found.checked:.4f} on as many examples"
    console.print(Text(f"best: {best.member}: {worth} that did not choose it"), soft_wrap=True)
    told = f"nefl export {shlex.quote(str(run))} --member {shlex.quote(best.member)} -o FILE"
    console.print(Text(f"write it with: {told}"), soft_wrap=True)
