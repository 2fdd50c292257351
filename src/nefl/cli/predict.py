"""`nefl predict` and `nefl serve`: answers from an exported file."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich import box
from rich.table import Table
from rich.text import Text

from nefl.artifacts.notes import to_json
from nefl.asking.texts import Completion
from nefl.asking.way import MAX_FILE, Wish, bounded, read_file
from nefl.cli.terminal import Terminal, console_for_tables, say
from nefl.elastic.budget import parse_budget
from nefl.engines.tuning import give_memory_back
from nefl.errors import ConfigError
from nefl.serving.app import CONCURRENCY, MAX_BODY, as_json
from nefl.serving.predictor import Prediction, Predictor
from nefl.serving.server import make_server
from nefl.web.callers import is_loopback

THREADS = 1
"""For one example, more threads wait for each other longer than they compute."""

STDIN = Path("-")

File = Annotated[Path, typer.Argument(help="A file that nefl export wrote.")]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="PACKAGE.MODULE:FUNCTION",
        help="The function that makes your own model, for an elastic file of it.",
    ),
]


def predict(
    file: File,
    things: Annotated[
        list[Path] | None,
        typer.Argument(
            help="What to answer for: pictures, texts, tables (CSV or JSON) or arrays (.npy, .npz, "
            "JSON), as the file takes them; - is the standard input."
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="A text, instead of a file of it.")] = None,
    model: Model = None,
    submodel: Annotated[
        int | None, typer.Option(help="Which one answers, in an elastic file.")
    ] = None,
    fits: Annotated[
        str | None, typer.Option(help="The largest that fits, as in latency<5ms.")
    ] = None,
    length: Annotated[int, typer.Option(help="Tokens by which a text is completed.")] = Wish.length,
    temperature: Annotated[
        float, typer.Option(help="0 completes a text by the likeliest tokens; above draws them.")
    ] = Wish.temperature,
    seed: Annotated[int, typer.Option(help="Where draws come from.")] = Wish.seed,
    as_json_: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Answer for pictures, texts, rows of tables or arrays."""
    if submodel is not None and fits is not None:
        raise ConfigError("give one of --submodel and --fits")
    if not things and text is None:
        raise ConfigError("give a file to answer for, - for the standard input, or --text")
    torch.set_num_threads(THREADS)
    predictor = Predictor(file, model)
    wish, budget = Wish(length, temperature, seed), None if fits is None else parse_budget(fits)
    found = [
        (where, predictor(
            data, where, submodel=submodel, budget=budget, wish=wish, is_json=is_json,
        ))
        for where, data, is_json in _given(things or (), text)
    ]  # fmt: skip
    if as_json_:
        answers = [{"source": where, **as_json(answer)} for where, answer in found]
        say(to_json({"predictions": answers}, indent=2))
    elif isinstance(predictor.way, Completion):
        for _, done in found:
            say(done.answers[0].said)
    else:
        _show(found, predictor.way.noun)


def _given(things: Sequence[Path], text: str | None) -> Iterator[tuple[str, bytes, bool]]:
    """Yield the name and the bytes of each thing, and whether it is called JSON."""
    if text is not None:
        yield "--text", text.encode(errors="surrogateescape"), False
    for thing in things:
        if thing == STDIN:
            yield "standard input", bounded(sys.stdin.buffer.read(MAX_FILE + 1), "stdin"), False
        else:
            yield str(thing), read_file(thing), thing.suffix.lower() == ".json"


def _show(found: Sequence[tuple[str, Prediction]], noun: str) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in (noun, "answer", "submodel", "latency"):
        table.add_column(heading, justify="left" if heading in (noun, "answer") else "right")
    for where, done in found:
        for place, answer in enumerate(done.answers, start=1):
            name = f"{where}, {place}" if done.several else where
            latency = f"{done.latency / len(done.answers) * 1e3:.2f} ms"
            table.add_row(Text(name), Text(answer.said), str(done.submodel), latency)
    console_for_tables().print(table)


def serve(
    file: File,
    model: Model = None,
    host: Annotated[str, typer.Option(help="Where to listen; this machine alone.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    name: Annotated[
        list[str] | None,
        typer.Option(help="A further name it may be asked under, a proxy's say; repeatable."),
    ] = None,
    max_body: Annotated[int, typer.Option(help="Bytes of a request that are taken.")] = MAX_BODY,
    concurrency: Annotated[int, typer.Option(help="Requests under way at once.")] = CONCURRENCY,
) -> None:
    """Answer over HTTP: a page for people, JSON for programs."""
    torch.set_num_threads(THREADS)
    give_memory_back()
    server = make_server(
        Predictor(file, model),
        host=host,
        port=port,
        names=name or (),
        max_body=max_body,
        concurrency=concurrency,
    )
    console = Terminal(stderr=True, soft_wrap=True)
    shown = f"[{host}]" if ":" in host else host
    console.print(Text(f"http://{shown}:{server.effective_port}/ answers; stop with Ctrl-C"))
    if not is_loopback(host):
        console.print(Text("others can reach this address: it has neither passwords nor TLS"))
        if not name:
            console.print(Text("it may be asked by its address; give other names with --name"))
    try:
        server.run()
    except KeyboardInterrupt:
        console.print(Text("stopped"))
    finally:
        server.close()
