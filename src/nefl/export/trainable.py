"""From a run or a recipe to programs that train its submodels, without PyTorch."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nefl.artifacts.notes import CONFIG, stored_config
from nefl.artifacts.trainable import OptimiserCard, TrainableCard, trainable_to_json
from nefl.config import RunConfig
from nefl.config.reading import config_from
from nefl.engines.device_clients import DeviceClients, check_device_clients, program_file
from nefl.engines.tuning import tuned_process
from nefl.errors import ConfigError
from nefl.files import write_atomically
from nefl.ondevice.programs import Program
from nefl.recipes import recipe_values
from nefl.references import check_code
from nefl.running.assembly import assemble


@dataclass(frozen=True)
class TrainableExport:
    """A program that was written.

    Attributes:
        path: the file; its card lies beside it as JSON.
        size: its bytes.
        sha256: its checksum.
        card: what it says of itself.
    """

    path: Path
    size: int
    sha256: str
    card: TrainableCard


def export_trainable(
    source: str | Path,
    out: str | Path,
    *,
    submodels: Sequence[int] | None = None,
    trust_code: bool = False,
    begun: Callable[[int], object] | None = None,
) -> list[TrainableExport]:
    """Write programs that train submodels in ExecuTorch, each tried in the runtime first.

    Args:
        source: a run's folder, or a recipe's name or file. No weights of it are used.
        out: the folder for the files, new or not.
        submodels: which ones, from 1; all if left out.
        trust_code: import what a run names, though it was never named on this machine.
        begun: is told each submodel before its program is made, which takes half a minute or more.

    Raises:
        NeflError: if something is missing, or ExecuTorch cannot train the model.
    """
    config = trained_config(source, trust_code=trust_code)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file; programs need a folder, one file for each")
    setting = assemble(config)
    check_device_clients(config, setting.family, "cpu")
    chosen = submodels or range(1, len(setting.family) + 1)
    for number in chosen:
        setting.family.index(number)
    clients = DeviceClients(config, setting.family, setting.task)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror})") from None
    with tuned_process(config.engine.threads):
        written = []
        for number in chosen:
            if begun is not None:
                begun(number)
            path = program_file(folder, number)
            written.append(_write(clients.program(number), config, path))
        return written


def trained_config(source: str | Path, *, trust_code: bool) -> RunConfig:
    """Return the settings of a run or a recipe, with all clients in ExecuTorch.

    Raises:
        NeflError: if there is no such run or recipe, or it names code of a stranger's.
    """
    place = Path(source)
    if (place / CONFIG).is_file():
        config = stored_config(place)
        check_code(config, place, trusted=trust_code)
    else:
        config = config_from(recipe_values(str(source)), str(source))
    engine = replace(
        config.engine, devices=("cpu",), client="executorch", client_share=1.0, programs=None
    )
    return replace(config, engine=engine)


def _write(program: Program, config: RunConfig, path: Path) -> TrainableExport:
    local = config.local
    steps = OptimiserCard(
        local.optimizer,
        local.learning_rate,
        local.momentum,
        local.weight_decay,
        local.epochs,
        asdict(config.schedule),
        config.rounds,
    )
    final = replace(program, card=replace(program.card, optimiser=steps))
    final.save(path)
    text = trainable_to_json(final.card, indent=1)
    write_atomically(path.with_suffix(".json"), lambda beside: _fill(beside, text))
    data = path.read_bytes()
    return TrainableExport(path, len(data), hashlib.sha256(data).hexdigest(), final.card)


def _fill(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
