"""From a run to a file that has been checked in its own runtime."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path

import torch

from nefl.artifacts.card import Card, SubmodelCard
from nefl.config import MemberConfig
from nefl.elastic.budget import Budget, Cost
from nefl.elastic.file import TrainedFamily, load, measured_tensors, save_family
from nefl.elastic.model import measure_latency
from nefl.engines.tuning import tuned_process
from nefl.errors import ConfigError, RunError
from nefl.export.compare import MAX_LOSS, Comparison, check, compare, tolerance_of
from nefl.export.cutting import cut_source, member_spec
from nefl.export.fold import Plain, fold
from nefl.export.formats import find_format, format_for
from nefl.export.measure import Measured, measure_file
from nefl.export.plainfile import open_plain
from nefl.export.source import Source, open_run, predict_batches
from nefl.files import check_folder_target, check_target, write_atomically, write_folder
from nefl.models.table import MODELS
from nefl.nesting.corners import extract
from nefl.nesting.frozen import learned_state
from nefl.state import ServerState
from nefl.tasks.task import Task

EXAMPLES = 1000
"""Test examples on which a file is compared with the trained model."""

CALIBRATION = 256
"""Training examples that show int8 the ranges of activations."""


@dataclass(frozen=True)
class Export:
    """A file that was written and checked.

    Attributes:
        path: the file.
        format: its format.
        size: its bytes.
        card: what it says of itself.
        plain: what could be folded.
        comparison: how it compares with the trained model.
        measured: its latency and peak memory here; None if that was not asked for.
    """

    path: Path
    format: str
    size: int
    card: Card
    plain: Plain
    comparison: Comparison
    measured: Measured | None


def export_submodel(
    run: str | Path,
    out: str | Path,
    *,
    submodel: int | None = None,
    fits: Budget | None = None,
    member: MemberConfig | None = None,
    format_name: str | None = None,
    quantized: bool = False,
    best: bool = False,
    examples: int = EXAMPLES,
    max_loss: float = MAX_LOSS,
    measure: bool = True,
    trust_code: bool = False,
    task: Task | None = None,
) -> Export:
    """Write a submodel of a run as a plain network, and check the file in its own runtime.

    Args:
        run: the run's folder.
        out: the file; it is only there once it has passed.
        submodel: which one, from 1; or
        fits: the largest that keeps to this budget; or
        member: any that can be cut out of the family, trained or not.
        format_name: a name in `FORMATS`; left out, the end of the file's name decides.
        quantized: int8 instead of float32.
        best: the best checkpoint instead of the newest.
        examples: test examples for the comparison.
        max_loss: what int8 may lose of the most important metric, see `compare.MAX_LOSS`.
        measure: whether to measure latency and peak memory.
        trust_code: import what the run names, though it was never named on this machine.
        task: what the run learned, where that was given in memory with functions of its own.

    Raises:
        NeflError: if something is missing, nothing fits, or the file differs from the model.
    """
    path = Path(out)
    if sum(given is not None for given in (submodel, fits, member)) != 1:
        raise ConfigError(
            "give one of a submodel's number, a budget that it has to fit, and a member by its "
            "width and blocks; all submodels go into one file with the format elastic"
        )
    format_name = format_for(path, format_name, family=False)
    _check_examples(examples)
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent}: is no folder to write to; make it first")
    folder = find_format(format_name).is_folder
    (check_folder_target if folder else check_target)(path)
    if folder and quantized:
        raise ConfigError(f"format {format_name}: keeps the weights' own dtype; leave int8 out")
    source = open_run(run, best=best, trust_code=trust_code, task=task)
    if fits is not None:
        submodel = largest_that_fits(source, fits)
    if member is not None:
        source, submodel = cut_source(source, member_spec(source, member)), 1
    assert submodel is not None  # noqa: S101 -- one of the three is given
    source.setting.family.index(submodel)
    with tuned_process(source.setting.config.engine.threads):
        done = _write(source, submodel, path, format_name, quantized, examples, max_loss)
    # A process of its own can rebuild nefl's models from their names, and no others.
    alone = not folder and (format_name != "safetensors" or done.card.model in MODELS)
    return replace(done, measured=measure_file(path)) if measure and alone else done


def _check_examples(examples: int) -> None:
    if examples < 1:
        raise ConfigError(f"examples {examples}: give 1 or more to compare on")


def _write(
    source: Source,
    submodel: int,
    path: Path,
    format_name: str,
    quantized: bool,
    examples: int,
    max_loss: float,
) -> Export:
    form = find_format(format_name)
    inputs, target = source.test_batch(examples)
    wanted = predict_batches(source.submodel(submodel), inputs)
    trained = source.submodel(submodel)
    tolerance = tolerance_of(trained)
    plain = fold(trained) if form.folded else Plain(trained, 0, 0)
    card = replace(source.card((submodel,)), quantized="int8" if quantized else None)
    build = source.setting.family.build
    reopen = partial(open_plain, build=build) if format_name == "safetensors" else form.open
    save = form.prepare(plain.network, card, source.training_batch(CALIBRATION))
    found: list[tuple[Comparison, Card]] = []

    def write(beside: Path) -> None:
        """Write, try, and write again with what the trial has shown; both must pass."""
        save(beside, card)
        got = predict_batches(reopen(beside), inputs)
        comparison = compare(got, wanted, target, source.setting.task, tolerance)
        check(comparison, quantized=quantized, max_loss=max_loss)
        final = replace(card, submodels=(with_values(card.submodels[0], comparison),))
        save(beside, final)
        again = reopen(beside)
        if not torch.allclose(again(inputs[:2]), wanted[:2], atol=2 * comparison.difference + 1e-6):
            raise RunError(f"{path}: the file does not repeat its own results")
        found.append((comparison, again.card))

    (write_folder if form.is_folder else write_atomically)(path, write)
    comparison, written = found[0]
    files = path.iterdir() if form.is_folder else (path,)
    size = sum(file.stat().st_size for file in files)
    return Export(path, format_name, size, written, plain, comparison, None)


def with_values(card: SubmodelCard, found: Comparison) -> SubmodelCard:
    """Note on a card what was measured of the file itself."""
    finite = {name: value for name, value in found.values.items() if isfinite(value)}
    return replace(card, values=finite, examples=found.examples)


def largest_that_fits(source: Source, budget: Budget) -> int:
    """Return the largest submodel within a budget; latency is measured here, in torch.

    Raises:
        ConfigError: if none fits, with what the smallest costs.
    """
    costs: list[Cost] = []
    for number in range(len(source.setting.family), 0, -1):
        described = source.describe(number)
        cost = Cost(described.params, described.macs, described.memory)
        if budget.latency is not None and cost.fits(replace(budget, latency=None)):
            network = fold(source.submodel(number)).network
            inputs = source.setting.task.signature.example(1)
            cost = replace(cost, latency=measure_latency(lambda n=network, x=inputs: n(x)))  # type: ignore[misc]
            if cost.fits(budget):
                return number
        elif budget.latency is None and cost.fits(budget):
            return number
        costs.append(cost)
    least = costs[-1]
    seconds = f", {least.latency * 1e3:.2f} ms" if least.latency is not None else ""
    raise ConfigError(
        f"no submodel fits: the smallest has {least.params:.0f} parameters, {least.macs:.0f} MACs, "
        f"{least.memory:.0f} bytes{seconds}; allow more, or train a family with a smaller one"
    )


@dataclass(frozen=True)
class ElasticExport:
    """An elastic file that was written and checked.

    Attributes:
        path: the file.
        size: its bytes.
        state_bytes: bytes of the global model and of all per-submodel tensors.
        card: what it says of itself.
        comparisons: how each submodel compares with the trained one.
    """

    path: Path
    size: int
    state_bytes: int
    card: Card
    comparisons: Sequence[Comparison]


def export_family(
    run: str | Path,
    out: str | Path,
    *,
    best: bool = False,
    examples: int = EXAMPLES,
    trust_code: bool = False,
    task: Task | None = None,
) -> ElasticExport:
    """Write all submodels of a run to one elastic file, and check each of them.

    Arguments are those of `export_submodel`.

    Raises:
        NeflError: if something is missing or a submodel differs from the trained one.
    """
    path = Path(out)
    _check_examples(examples)
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent}: is no folder to write to; make it first")
    check_target(path)
    source = open_run(run, best=best, trust_code=trust_code, task=task)
    numbers = tuple(range(1, len(source.setting.family) + 1))
    trained = TrainedFamily(source.card(numbers), source.setting.family, _as_evaluated(source))
    inputs, target = source.test_batch(examples)
    found: list[Comparison] = []
    with tuned_process(source.setting.config.engine.threads):
        for number in numbers:
            wanted = predict_batches(source.submodel(number), inputs)
            got = predict_batches(trained.model(number), inputs)
            comparison = compare(got, wanted, target, source.setting.task)
            check(comparison, quantized=False)
            found.append(comparison)
    submodels = tuple(map(with_values, trained.card.submodels, found))
    trained = replace(trained, card=replace(trained.card, submodels=submodels))
    save_family(path, trained)
    again = load(path, source.setting.family)  # its checksum is compared
    return ElasticExport(path, path.stat().st_size, _bytes(trained.state), again.card, found)


def _as_evaluated(source: Source) -> ServerState:
    """Return the state with all that evaluation measures for a submodel among its own tensors."""
    family, own = source.setting.family, []
    for number in range(1, len(family) + 1):
        stored = extract(source.state, family, number)
        module = source.submodel(number)
        now = learned_state(module)
        kept = {
            name: tensor.clone()
            for name, tensor in now.items()
            if name in family.own_names(number) or not torch.equal(tensor, stored[name])
        }
        own.append(kept | measured_tensors(module))
    return replace(source.state, per_submodel=tuple(own))


def _bytes(state: ServerState) -> int:
    tensors = [t for group in (state.shared, *state.per_submodel) for t in group.values()]
    return sum(t.numel() * t.element_size() for t in tensors)
