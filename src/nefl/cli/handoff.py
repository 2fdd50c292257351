"""`nefl handoff`: a client of one's own, in any language, beside torch."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nefl.artifacts.notes import to_json
from nefl.cli.terminal import say
from nefl.cli.train import AsJson, TrustCode
from nefl.export.conformance import try_client


def handoff(
    source: Annotated[Path, typer.Argument(help="A run's folder, or a recipe's name or file.")],
    command: Annotated[
        str, typer.Argument(help="The client's command; it gets a task's folder as last argument.")
    ],
    submodel: Annotated[int, typer.Option(help="The submodel that it trains, from 1.")] = 1,
    client: Annotated[int, typer.Option(help="Whose examples it trains on, from 0.")] = 0,
    limit: Annotated[float, typer.Option(help="Seconds that it may take.")] = 600.0,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Give a client of your own a task as files, and compare its update with nefl's and torch's."""
    found = try_client(
        source, command, submodel=submodel, client=client, limit=limit, trust_code=trust_code
    )
    if as_json:
        say(to_json(asdict(found), indent=2))
    else:
        say(
            f"{command}: its update differs from that of nefl's own client in ExecuTorch by "
            f"{found.difference:.1e} of its size, from torch's by {found.from_torch:.1e}; loss "
            f"{found.loss:.6f}, torch {found.torch_loss:.6f}; {found.examples} examples"
        )
