"""`nefl flower`: clients that are real, or simulated by Flower, and what a run knows of them."""

import subprocess
import sys
import tomllib
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from nefl.artifacts.notes import CONFIG, to_json
from nefl.cli.terminal import Terminal, say
from nefl.config.reading import config_from, parse_setting
from nefl.errors import ConfigError, RunError
from nefl.recipes import recipe_values
from nefl.report.reading.nodes import Node, read_nodes

flower = typer.Typer(
    help="Clients on other machines, by Flower.", no_args_is_help=True, add_completion=False
)

AppFolder = Annotated[Path, typer.Argument(help="The folder of a Flower app.")]


def _need_flower() -> None:
    if find_spec("flwr") is None:
        raise ConfigError("Flower is not installed; install the extra: pip install 'nefl[flower]'")


@flower.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where to write the app, new or empty.")],
    recipe: Annotated[str, typer.Option(help="The recipe it trains.")] = "digits",
) -> None:
    """Write a small, complete Flower app that trains nested submodels."""
    _need_flower()
    from nefl.engines.flower.programs.app_files import write_app

    config = config_from(recipe_values(recipe), recipe)
    for path in write_app(folder, recipe, config):
        say(path)
    say(f"try it with: nefl flower simulate {folder}", err=True)


@flower.command()
def simulate(
    folder: AppFolder,
    nodes: Annotated[
        int | None, typer.Option(help="Simulated nodes; the app's clients.count if left out.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A key of the app's run config, as in rounds=3; others go into settings."
        ),
    ] = None,
    limit: Annotated[float, typer.Option(help="Seconds the run may take.")] = 7 * 86400.0,
    home: Annotated[
        Path | None, typer.Option(help="Flower's own folder; .flwr in the app if left out.")
    ] = None,
) -> None:
    """Run an app over simulated nodes, with a SuperLink that ends with the run."""
    _need_flower()
    from nefl.cli.train import terminate_as_interrupt
    from nefl.engines.flower.programs.loopback import Loopback

    given: dict[str, Any] = dict(parse_setting(text) for text in settings or [])
    count = nodes or given.get("clients.count") or _clients(folder)
    place = home or folder / ".flwr"
    with terminate_as_interrupt(), Loopback(place, simulation=True) as loopback:
        loopback.start_server()
        run = loopback.run(folder, given, nodes=int(count))
        _follow(run, loopback.log("run"))
        if run.returncode:
            raise RunError(
                f"{folder}: the run was not started; see {loopback.log('run')}. A key that the "
                "app's pyproject.toml does not list goes into settings: --set "
                "'settings=\"model.method=nefl-co-wd\"'"
            )
        loopback.wait("run", limit)


@flower.command(context_settings={"allow_extra_args": True})
def node(
    context: typer.Context,
    superlink: Annotated[str, typer.Option(help="The SuperLink's address, host:port.")],
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without TLS, for trying on a closed network.")
    ] = False,
    root_certificates: Annotated[
        Path | None, typer.Option(help="The authority of the SuperLink's certificate.")
    ] = None,
    auth_supernode_private_key: Annotated[
        Path | None, typer.Option(help="This node's private key.")
    ] = None,
    node_config: Annotated[
        str, typer.Option(help="Keys and values of this node, as in 'partition-id=0 tier=2'.")
    ] = "",
    runtime: Annotated[
        Literal["torch", "executorch"] | None,
        typer.Option(help="What it trains with; as the run says, if left out."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port for this machine's own processes; a free one if left out."),
    ] = None,
    health_server_address: Annotated[
        str | None, typer.Option(help="Where to answer questions of health, host:port.")
    ] = None,
    poll: Annotated[
        float | None,
        typer.Option(help="Seconds between two looks for work; 3 if left out, as Flower has it."),
    ] = None,
    warm: Annotated[
        bool,
        typer.Option(
            "--warm/--cold", help="Keep a trainer alive, or start a process for every message."
        ),
    ] = True,
    trainer_memory: Annotated[
        float | None,
        typer.Option(help="Bytes that a trainer may hold after a message; 2e9 if left out."),
    ] = None,
) -> None:
    """Run a node: a SuperNode and a trainer beside it, both started again when they end.

    What follows a -- is given to flower-supernode as it is. Ctrl-C or SIGTERM ends all of it.
    """
    _need_flower()
    from nefl.engines.flower.programs.node import TRAINER_MEMORY, NodeOptions, keep_node

    if runtime is not None:
        if "runtime=" in node_config:
            raise ConfigError("--runtime: --node-config has a runtime too; give one of them")
        node_config = f'{node_config} runtime="{runtime}"'.strip()
    options = NodeOptions(
        superlink=superlink,
        insecure=insecure,
        root_certificates=root_certificates,
        auth_supernode_private_key=auth_supernode_private_key,
        node_config=node_config,
        port=port,
        health_server_address=health_server_address,
        poll=poll,
        warm=warm,
        trainer_memory=TRAINER_MEMORY if trainer_memory is None else int(trainer_memory),
        further=tuple(context.args),
    )
    keep_node(options, lambda line: say(f"nefl: {line}", err=True))


@flower.command()
def status(
    run: Annotated[Path, typer.Argument(help="The folder of a run over Flower.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """List a run's nodes: who is there, who was refused and why, who was heard when."""
    nodes = _nodes(run)
    if as_json:
        say(to_json([asdict(node) for node in nodes]))
        return
    table = Table(box=box.SIMPLE_HEAD)
    for name, heading in STATUS.items():
        table.add_column(heading, overflow="fold", justify="left" if name in WORDS else "right")
    for node in nodes:
        shown = asdict(node)
        table.add_row(*(Text("" if shown[name] is None else str(shown[name])) for name in STATUS))
    Terminal().print(table)
    for node in nodes:
        if node.why:
            say(f"{node.name}: {node.why}")


STATUS = {
    "name": "node",
    "client": "client",
    "tier": "tier",
    "largest": "largest",
    "state": "state",
    "heard": "heard",
    "counted": "counted",
    "failures": "failures",
    "version": "nefl",
}
"""The columns of `nefl flower status`, by what they show of a node."""
WORDS = ("name", "state")


def _nodes(run: Path) -> list[Node]:
    """Return a run's nodes.

    Raises:
        RunError: if there is no such run, or no node has come yet.
    """
    if not (run / CONFIG).is_file():
        raise RunError(f"{run}: is no run's folder; give that of a run over Flower")
    try:
        nodes = read_nodes(run)
    except OSError as error:
        raise RunError(f"{run}: its log cannot be read ({error})") from None
    if not nodes:
        raise RunError(
            f"{run}: its log tells of no nodes; none has come yet, or its clients are simulated "
            "on this machine"
        )
    return nodes


@flower.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="Where to write them.")],
    host: Annotated[
        list[str], typer.Option(help="A name or address of the server; may be repeated.")
    ],
    node: Annotated[
        list[str] | None, typer.Option(help="A node to make a key for; may be repeated.")
    ] = None,
) -> None:
    """Make the certificates of a server and the keys of nodes."""
    _need_flower()
    from nefl.engines.flower.programs.certificates import make_certificates, make_node_key
    from nefl.engines.flower.server.registry import check_node_name

    for name in node or []:
        check_node_name(name)  # before anything is written
    files = make_certificates(folder, host)
    say(f"{files.authority}  for everybody")
    say(f"{files.certificate}  for the server")
    say(f"{files.key}  for the server, secret")
    for name in node or []:
        public = make_node_key(folder, name)
        say(f"{folder / name}  for node {name}, secret")
        say(f"{public}  to register it with")


def _clients(folder: Path) -> int:
    try:
        content = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        return int(content["tool"]["flwr"]["app"]["config"]["clients"]["count"])
    except OSError as error:
        raise RunError(f"{folder}: is no Flower app ({error.strerror}: pyproject.toml)") from None
    except (KeyError, TypeError, ValueError):
        raise RunError(f"{folder}: its run config has no clients.count; give --nodes") from None


def _follow(run: "subprocess.Popen[bytes]", log: Path) -> None:
    """Show what a run says until it ends."""
    with log.open("rb") as file:
        while True:
            ended = run.poll() is not None
            sys.stderr.write(file.read().decode(errors="replace"))
            sys.stderr.flush()
            if ended:
                return
            try:
                run.wait(0.5)
            except subprocess.TimeoutExpired:
                continue
