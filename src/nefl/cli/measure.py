"""`nefl measure`: what this device can do, as an entry for a fleet's file."""

from pathlib import Path
from typing import Annotated

import typer

from nefl.cli.profile import parse_shape
from nefl.cli.terminal import say
from nefl.cli.user_files import write_output
from nefl.elastic.budget import BYTES, parse_amount
from nefl.engines.machine import HEADROOM
from nefl.errors import ConfigError
from nefl.estimate.family import signature_of
from nefl.fleet.measuring import (
    entries_text,
    measure_bandwidth,
    measure_device,
    reported_devices,
)
from nefl.models.table import find_design
from nefl.wording import counted


def measure(
    model: Annotated[str, typer.Argument(help="Whose widths are probed.")] = "resnet20",
    name: Annotated[str, typer.Option(help="What the device is called.")] = "this device",
    classes: Annotated[int | None, typer.Option(help="Classes to tell apart.")] = None,
    input_shape: Annotated[
        str | None, typer.Option("--input", help="One example, as in 3x32x32.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Examples in a training step.")] = 32,
    threads: Annotated[int, typer.Option(help="Threads that it may use.")] = 1,
    memory: Annotated[
        str | None, typer.Option(help="What training may take, as in 200MB; what is free now.")
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(help="Bytes it sends or receives in a second, as in 1MB.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Measure the bandwidth by fetching from there.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Instead: what the nodes of a Flower run have reported.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file to write.")] = None,
) -> None:
    """Measure what this device can train and run, for `nefl design`; needs no data."""
    if bandwidth is not None and url is not None:
        raise ConfigError("--bandwidth and --url: give one of them")
    known = _bytes("--bandwidth", bandwidth)
    if url is not None:
        known = measure_bandwidth(url)
    if run is not None:
        how = f"what nodes of {run.name} told, {1 - 1 / HEADROOM:.0%} of their memory left free"
        text = entries_text(reported_devices(run, known), how)
    else:
        if not 1 <= batch <= 65_536 or not 1 <= threads <= 1024:
            raise ConfigError(f"batch {batch}, threads {threads}: give 1 to 65536, and 1 to 1024")
        shape = None if input_shape is None else parse_shape(input_shape)
        signature = signature_of(find_design(model).usual, shape, classes)
        found = measure_device(
            name,
            model,
            signature,
            batch_size=batch,
            threads=threads,
            memory=_bytes("--memory", memory),
            bandwidth=known,
        )
        how = f"{model} on {signature.shown}, {counted(threads, 'thread')}"
        text = entries_text([found], how)
    if out is None:
        say(text, nl=False)
    else:
        write_output(out, text)


def _bytes(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    amount = parse_amount(text, BYTES)
    if amount is None or not amount > 0:
        raise ConfigError(f"{option} {text!r}: give bytes, as in 200MB")
    return amount
