"""`nefl doctor`: whether this machine trains as it should, for its owner and to be sent on."""

import json
from pathlib import Path
from typing import Annotated

import typer

from nefl.cli.terminal import say
from nefl.cli.user_files import write_output
from nefl.doctor import Finding, examine, told_of

EXIT_WRONG = 1


def doctor(
    devices: Annotated[
        list[str] | None,
        typer.Option("--device", help="A device to look at besides the CPU; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write the JSON to this file.")
    ] = None,
) -> None:
    """Check this machine: devices, determinism, precision, parity with the CPU, and speed."""

    def tell(found: Finding) -> None:
        if not as_json:
            say(f"{found.verdict:<9} {found.where:<8} {found.what}: {found.told}")

    report = examine(devices or (), tell)
    text = json.dumps(report.to_dict(), indent=2)
    if out is not None:
        write_output(out, f"{text}\n")
    if as_json:
        say(text)
    else:
        known = report.about
        say(
            f"\nnefl {known['nefl']}, torch {known['torch']}, Python {known['python']}, "
            f"{known['machine']}, {known['processor']} ({known['cpu_capability']})"
        )
        for gpu in report.devices:
            say(told_of(gpu))
        if not report.devices:
            say("torch finds no CUDA device here")
        say(f"{len(report.wrong)} wrong" if report.wrong else "nothing wrong")
    if report.wrong:
        raise typer.Exit(EXIT_WRONG)
