"""`nefl predict` and `nefl serve`: answers for pictures, from an exported file."""

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich import box
from rich.table import Table
from rich.text import Text

from nefl.artifacts.notes import to_json
from nefl.cli.terminal import Terminal, console_for_tables, say
from nefl.elastic.budget import parse_budget
from nefl.elastic.inputs import read_picture
from nefl.engines.tuning import give_memory_back
from nefl.errors import ConfigError
from nefl.serving.app import CONCURRENCY, MAX_BODY, as_json
from nefl.serving.predictor import Prediction, Predictor
from nefl.serving.server import make_server
from nefl.web.callers import is_loopback

THREADS = 1
"""For one image, more threads wait for each other longer than they compute."""

File = Annotated[Path, typer.Argument(help="A file that nefl export wrote.")]


def predict(
    file: File,
    images: Annotated[list[Path], typer.Argument(help="Pictures: PNG, JPEG, WebP or BMP.")],
    submodel: Annotated[
        int | None, typer.Option(help="Which one answers, in an elastic file.")
    ] = None,
    fits: Annotated[
        str | None, typer.Option(help="The largest that fits, as in latency<5ms.")
    ] = None,
    as_json_: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Say what is in pictures."""
    if submodel is not None and fits is not None:
        raise ConfigError("give one of --submodel and --fits")
    torch.set_num_threads(THREADS)
    predictor = Predictor(file)
    budget = None if fits is None else parse_budget(fits)
    found: list[tuple[Path, Prediction]] = []
    for image in images:
        picture = read_picture(image)
        found.append((image, predictor(picture, str(image), submodel=submodel, budget=budget)))
    if as_json_:
        answers = [{"image": str(image), **as_json(answer)} for image, answer in found]
        say(to_json({"predictions": answers}, indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("picture", "class", "probability", "submodel", "latency"):
        table.add_column(heading, justify="left" if heading in ("picture", "class") else "right")
    for image, answer in found:
        table.add_row(
            Text(str(image)),
            Text(answer.name),
            f"{answer.classes[0][1]:.3f}",
            str(answer.submodel),
            f"{answer.latency * 1e3:.2f} ms",
        )
    console_for_tables().print(table)


def serve(
    file: File,
    host: Annotated[str, typer.Option(help="Where to listen; this machine alone.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    name: Annotated[
        list[str] | None,
        typer.Option(help="A further name it may be asked under, a proxy's say; repeatable."),
    ] = None,
    max_body: Annotated[int, typer.Option(help="Bytes of a picture that are taken.")] = MAX_BODY,
    concurrency: Annotated[int, typer.Option(help="Pictures under way at once.")] = CONCURRENCY,
) -> None:
    """Answer for pictures over HTTP: a page for people, JSON for programs."""
    torch.set_num_threads(THREADS)
    give_memory_back()
    server = make_server(
        Predictor(file),
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
