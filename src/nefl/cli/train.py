"""`nefl train`, `resume` and `evaluate`."""

import math
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from nefl.artifacts.notes import stored_config, to_json
from nefl.cli.dry_run import show_cost
from nefl.cli.progress import ProgressObserver, show_duration
from nefl.cli.tensorboard import TensorBoardObserver
from nefl.cli.terminal import Terminal, console_for_tables, say
from nefl.config import EngineConfig, RunConfig
from nefl.config.reading import config_from, parse_setting, with_settings
from nefl.recipes import recipe_values
from nefl.references import is_reference
from nefl.report.reading.published import ALIKE
from nefl.rounds import Observer
from nefl.running import lifecycle
from nefl.server.evaluate import mean_of
from nefl.wording import counted, show_bytes

EXIT_INTERRUPTED = 130
DEFAULT_RECIPE = "digits"

Engine = Annotated[str | None, typer.Option(help="serial, workers or auto.")]
Workers = Annotated[int | None, typer.Option(help="Worker processes; one a core if left out.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, … or auto.")]
Devices = Annotated[
    list[str] | None,
    typer.Option("--device", help="cpu, cuda, cuda:1, … or auto; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Run the code that the run names, though it is not yours."),
]
TensorBoard = Annotated[bool, typer.Option(help="Also write logs for TensorBoard.")]


def train(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name, or a TOML or JSON file.")
    ] = DEFAULT_RECIPE,
    out: Annotated[Path | None, typer.Option(help="The run's folder, new or empty.")] = None,
    engine: Engine = None,
    workers: Workers = None,
    seed: Annotated[int | None, typer.Option(help="Where everything random comes from.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds to train.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting, as in local.epochs=1; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check it, and tell what it will cost.")
    ] = False,
    tensorboard: TensorBoard = False,
    as_json: AsJson = False,
) -> None:
    """Train a nested family over simulated clients on this machine."""
    flags = {"engine.name": engine, "engine.workers": workers, "seed": seed, "rounds": rounds}
    given = dict(parse_setting(text) for text in settings or [])
    given |= {key: value for key, value in flags.items() if value is not None}
    values = recipe_values(recipe)
    if any(key.startswith(ALIKE) for key in given):
        # What was published is for another method, model or partition then.
        values = {key: value for key, value in values.items() if key != "published"}
    config = config_from(with_settings(values, given), recipe)
    if dry_run:
        show_cost(config, recipe, as_json=as_json)
        return
    console = Terminal(stderr=True, soft_wrap=True)
    place = _Place()

    def started(folder: Path) -> None:
        place.folder = folder
        console.print(Text(describe(config, folder)))

    def go(observers: Sequence[Observer]) -> lifecycle.RunResult:
        return lifecycle.train(config, out, name=recipe, observers=observers, started=started)

    _carry_out(go, config, place, tensorboard=tensorboard, as_json=as_json)


def resume(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    engine: Engine = None,
    workers: Workers = None,
    devices: Devices = None,
    rounds: Annotated[
        int | None, typer.Option(help="Another number of rounds, where the schedule allows it.")
    ] = None,
    changed_code: Annotated[
        bool,
        typer.Option(
            "--changed-code", help="Go on although your model's or data's source changed."
        ),
    ] = False,
    trust_code: TrustCode = False,
    tensorboard: TensorBoard = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped or killed, or give it more rounds."""
    config = stored_config(run)
    other = with_engine(config.engine, engine, workers, devices)
    if rounds is not None:
        config = config_from(config.to_dict() | {"rounds": rounds}, "flags")

    def go(observers: Sequence[Observer]) -> lifecycle.RunResult:
        return lifecycle.resume(
            run,
            engine=other,
            rounds=rounds,
            changed_code=changed_code,
            observers=observers,
            trust_code=trust_code,
        )

    _carry_out(go, config, _Place(run), tensorboard=tensorboard, as_json=as_json)


def evaluate(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    best: Annotated[bool, typer.Option(help="The best checkpoint, not the newest.")] = False,
    recalibrate: Annotated[
        bool,
        typer.Option("--recalibrate", help="Measure batch norms over the training data first."),
    ] = False,
    device: Device = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Measure every submodel of a run on its test set."""
    found = lifecycle.evaluate(
        run, best=best, recalibrate=recalibrate, device=device, trust_code=trust_code
    )
    measured = {name: [e.values[name] for e in found] for name in found[0].values}
    if as_json:
        primary = next(iter(measured))
        report = measured | {
            "loss": [e.loss for e in found],
            "worst": measured[primary][0],
            "average": mean_of(found, primary),
        }
        say(to_json(report, indent=2))
    else:
        console_for_tables().print(metrics_table(measured))


def partition(
    run: Annotated[Path, typer.Argument(help="The run's folder.")], trust_code: TrustCode = False
) -> None:
    """Draw how the classes spread over the clients of a run."""
    say(lifecycle.draw_partition(run, trust_code=trust_code))


def with_engine(
    config: EngineConfig,
    name: str | None,
    workers: int | None,
    devices: Sequence[str] | None,
) -> EngineConfig | None:
    """Return another engine if flags ask for one.

    Raises:
        ConfigError: if there is no such engine.
    """
    flags = {"name": name, "workers": workers, "devices": devices}
    changes = {key: value for key, value in flags.items() if value not in (None, [])}
    if not changes:
        return None
    if name == "serial" or workers is not None:  # those of the engine before do not count
        changes = {"workers": 0, "per_device": 0, **changes}
    settings = RunConfig(engine=config).to_dict()
    settings["engine"] |= changes
    return config_from(settings, "flags").engine


def describe(config: RunConfig, folder: Path) -> str:
    """Say in a line what is about to be trained."""
    clients = config.clients
    learned = config.task if is_reference(config.task) else config.data.name
    return (
        f"{config.model.name} {config.model.method} on {learned} "
        f"({config.partition.kind}), {clients.per_round} of {counted(clients.count, 'client')} a "
        f"round, {counted(config.rounds, 'round')}, seed {config.seed}, in {folder}"
    )


@dataclass
class _Place:
    """Where a run is, once it has begun."""

    folder: Path | None = None

    @property
    def known(self) -> Path:
        """The folder of a run that has begun."""
        assert self.folder is not None  # noqa: S101 - observers are told of rounds only
        return self.folder


def _carry_out(
    go: Callable[[Sequence[Observer]], lifecycle.RunResult],
    config: RunConfig,
    place: "_Place",
    *,
    tensorboard: bool,
    as_json: bool,
) -> None:
    console = Terminal(stderr=True)
    observers: list[Observer] = []
    if tensorboard:
        observers.append(TensorBoardObserver(lambda: place.known / "tensorboard"))
    progress = ProgressObserver(config.rounds, console)
    observers.append(progress)
    try:
        with terminate_as_interrupt():
            result = go(observers)
    except KeyboardInterrupt:
        progress.close()
        if place.folder is None:
            message = "stopped before the run began"
        else:
            message = f"stopped; go on with: nefl resume {shlex.quote(str(place.folder))}"
        console.print(Text(message), soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        progress.close()
    if as_json:
        say(to_json({"run": str(result.path), **result.summary}, indent=2))
    else:
        _show(result.summary, result.path)


@contextmanager
def goes_on_later() -> Iterator[None]:
    """Say, when it is stopped, that a command keeps what it has done so far."""
    try:
        with terminate_as_interrupt():
            yield
    except KeyboardInterrupt:
        stopped = "stopped; the same command goes on from here"
        Terminal(stderr=True, soft_wrap=True).print(Text(stopped))
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Let a polite end (SIGTERM) stop a run as Ctrl-C does, at a checkpoint.

    The first signal is the last that counts: a second one must not spoil the checkpoint. A SIGINT
    that is ignored from the start stays so: that is how a shell keeps Ctrl-C, which is meant for
    what runs in front, from its background jobs.
    """
    before = {number: signal.getsignal(number) for number in lifecycle.STOPPING}

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in lifecycle.STOPPING:
            signal.signal(number, lifecycle.pass_over)
        raise KeyboardInterrupt

    for number in lifecycle.STOPPING:
        if number == signal.SIGTERM or before[number] != signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def metrics_table(metrics: Mapping[str, Sequence[float | None]], title: str = "") -> Table:
    """Return the table of what was measured of each submodel."""
    table = Table(title=title or None, box=box.SIMPLE_HEAD)
    table.add_column("submodel", justify="right")
    for name in metrics:
        table.add_column(name, justify="right")
    columns = [[math.nan if v is None else v for v in values] for values in metrics.values()]
    for number, values in enumerate(zip(*columns, strict=True), start=1):
        table.add_row(str(number), *(f"{value:.4f}" for value in values))
    table.add_section()
    table.add_row("worst", *(f"{values[0]:.4f}" for values in columns))
    table.add_row("average", *(f"{sum(values) / len(values):.4f}" for values in columns))
    return table


def _show(summary: Mapping[str, Any], folder: Path) -> None:
    console = console_for_tables()
    if summary["metrics"]:
        console.print(metrics_table(summary["metrics"], f"after round {summary['rounds']}"))
    traffic = f"{show_bytes(summary['bytes_down'])} down, {show_bytes(summary['bytes_up'])} up"
    took = show_duration(summary["seconds"])
    console.print(Text(f"{took}, {traffic}, {counted(summary['failures'], 'failure')}; {folder}"))
    late = summary["discarded"]
    if late:
        by_submodel = ", ".join(f"{n} of submodel {k}" for k, n in late["by_submodel"].items())
        by_tier = ", ".join(
            f"{told['discarded']} of {told['asked']} asked ({tier})"
            for tier, told in late["by_tier"].items()
        )
        told_of = f"; {by_submodel}; {by_tier}" if late["updates"] else ""
        console.print(Text(f"discarded: {counted(late['updates'], 'late update')}{told_of}"))
    times = summary["simulated"]
    if times:
        console.print(
            Text(
                f"simulated: {show_duration(times['nested_seconds'])} with nested submodels, "
                f"{show_duration(times['full_seconds'])} if all clients trained the full model, "
                f"{show_duration(times['strong_only_seconds'])} with only the "
                f"{times['strong_clients_per_round']:.1f} clients a round that fit it "
                f"(none did in {counted(times['rounds_without_strong_clients'], 'round')})"
            )
        )
