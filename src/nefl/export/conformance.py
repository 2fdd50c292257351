"""Trying out a client of one's own, in any language: a task as files, its update beside torch's."""

import shlex
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from nefl.engines.device_clients import DeviceClients
from nefl.engines.tuning import tuned_process
from nefl.errors import ConfigError, UpdateError
from nefl.export.trainable import trained_config
from nefl.nesting.corners import extract
from nefl.ondevice.handoff import read_update, write_task
from nefl.running.assembly import assemble
from nefl.state import Tensors, TrainTask

TOLERANCE = 1e-4
"""How far an update may be from that of nefl's own client, relative to the size of its tensors.

Not from torch's: with other kernels an activation near zero may fall on its other side, and from
there on two trainings part, be they both right."""


@dataclass(frozen=True)
class Conformance:
    """What came of a client's trial.

    Attributes:
        difference: norm of the difference from the update of nefl's own client in ExecuTorch, over
            the norm of that.
        from_torch: the same from torch's update.
        loss: the client's mean loss.
        torch_loss: torch's.
        examples: how many examples it trained on.
    """

    difference: float
    from_torch: float
    loss: float
    torch_loss: float
    examples: int


def try_client(
    source: str | Path,
    command: str,
    *,
    submodel: int = 1,
    client: int = 0,
    limit: float = 600.0,
    trust_code: bool = False,
) -> Conformance:
    """Give a client of one's own a task as files, and compare its update with nefl's own.

    Args:
        source: a run's folder, or a recipe's name or file.
        command: what is run, with the folder of the task as its last argument.
        submodel: which one it trains, from 1.
        client: whose examples it trains on.
        limit: seconds that it may take.
        trust_code: import what a run names, though it was never named on this machine.

    Raises:
        NeflError: if the client cannot be run, fails, or gives back something else.
    """
    config = trained_config(source, trust_code=trust_code)
    plain = replace(config, engine=replace(config.engine, client="torch"))
    setting = assemble(plain)
    if not 0 <= client < setting.partition.clients:
        raise ConfigError(f"client {client}: there are 0 to {setting.partition.clients - 1}")
    weights = extract(setting.initial_state(), setting.family, submodel)
    task = TrainTask(1, client, submodel)
    with tuned_process(config.engine.threads):
        clients = DeviceClients(config, setting.family, setting.task)
        program = clients.program(submodel)
        site = setting.site()
        rows, how = site.given_to(task)
        with tempfile.TemporaryDirectory(prefix="nefl-task-") as place:
            folder = Path(place)
            write_task(folder, task, program, weights, rows, how)
            _run(command, folder, limit)
            update = read_update(folder, task, program.card)
        first = site.train(task, weights)
        wanted = clients.train(task, weights, rows, how)
    apart = _apart(update.trained, wanted.trained)
    if update.examples != wanted.examples or not apart <= TOLERANCE:
        raise UpdateError(
            f"{command}: its update differs from that of nefl's own client by {apart:.2g} of its "
            f"size, expected {TOLERANCE:g} at most; it trained on {update.examples} examples, "
            f"expected {wanted.examples}"
        )
    return Conformance(
        apart,
        _apart(update.trained, first.trained),
        update.metrics["loss"],
        first.metrics["loss"],
        update.examples,
    )


def _run(command: str, folder: Path, limit: float) -> None:
    words = shlex.split(command)
    try:
        done = subprocess.run(
            [*words, str(folder)], capture_output=True, text=True, errors="replace", timeout=limit
        )
    except OSError as error:
        raise ConfigError(f"{command}: cannot be run ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise UpdateError(f"{command}: took more than {limit:g} seconds") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise UpdateError(f"{command}: ended with {done.returncode} and said: {said[0][:300]}")


def _apart(found: Tensors, wanted: Tensors) -> float:
    off = size = 0.0
    for name, tensor in wanted.items():
        off += float((found[name].double() - tensor.double()).square().sum())
        size += float(tensor.double().square().sum())
    return float((off / size) ** 0.5)
