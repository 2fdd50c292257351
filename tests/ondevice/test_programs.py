"""Programs are made once, tried before they are kept, and refused where they do not fit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn, ones

import nefl
from nefl.artifacts.trainable import TrainableCard, trainable_from_json, trainable_to_json
from nefl.config.reading import config_from
from nefl.engines.device_clients import DeviceClients
from nefl.errors import ConfigError, RunError
from nefl.export.formats import open_model
from nefl.ondevice import programs as making
from nefl.ondevice import runtime
from nefl.ondevice.plain import Trained
from nefl.ondevice.programs import Program, Wanted, get_program, open_trainable
from nefl.running.assembly import Setting, assemble
from tests.ondevice.conftest import on_device


def wanted_of(setting: Setting) -> Wanted:
    config = setting.config
    batch = config.local.batch_size
    return Wanted(setting.family, setting.task, batch, config.model.name, config.model.method)


def test_exported_programs_say_what_they_are(programs: Path, setting: Setting) -> None:
    assert sorted(path.name for path in programs.iterdir()) == [
        "submodel-1.json", "submodel-1.pte", "submodel-2.json", "submodel-2.pte",
    ]  # fmt: skip
    card = open_trainable(programs / "submodel-2.pte").card
    beside = programs / "submodel-2.json"
    assert trainable_from_json(beside.read_text(), beside) == card
    assert (card.submodel, card.batch_size, card.loss) == (2, 8, "cross-entropy")
    assert card.family == setting.family.fingerprint
    assert [tensor.name for tensor in card.layout] == list(setting.family.layout(2))
    assert "step_size.value" in card.parameters
    assert [(norm.name, norm.values) for norm in card.norms] == [("norm", 16)]
    assert card.optimiser is not None
    assert (card.optimiser.momentum, card.optimiser.schedule["name"]) == (0.9, "cosine")


def test_a_program_is_made_once(
    programs: Path, setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = open_trainable(programs / "submodel-1.pte").code
    calls = []

    def lower(graph: object) -> bytes:
        calls.append(graph)
        return made

    monkeypatch.setattr(making, "lower", lower)
    wanted = wanted_of(setting)
    first = get_program(wanted, 1, tmp_path)
    assert get_program(wanted, 1, tmp_path) == first
    assert len(calls) == 1
    (kept,) = (tmp_path / "programs").glob("*.pte")
    kept.write_bytes(kept.read_bytes()[:-1])  # a damaged one is made again
    assert get_program(wanted, 1, tmp_path) == first
    assert len(calls) == 2
    get_program(replace(wanted, batch_size=7), 1, tmp_path)  # another program, another name
    assert len(calls) == 3


def test_a_program_that_is_wrong_is_not_kept(
    programs: Path, setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = open_trainable(programs / "submodel-1.pte").code
    monkeypatch.setattr(making, "lower", lambda _graph: made)

    def twice(outputs: Tensor, target: Tensor) -> Tensor:
        return 2 * nn.functional.cross_entropy(outputs, target)

    task = replace(setting.task, loss=twice)
    with pytest.raises(RunError, match="submodel 1 of tiny.*its program has loss .* where torch"):
        get_program(replace(wanted_of(setting), task=task), 1, tmp_path)
    assert not list((tmp_path / "programs").glob("*.pte"))


WRONG: dict[str, tuple[Callable[[TrainableCard], TrainableCard], str]] = {
    "family": (lambda c: replace(c, family="0" * 64), "another family: found 000"),
    "batch": (lambda c: replace(c, batch_size=16), "another batch size: found 16 .* expected 8"),
    "submodel": (lambda c: replace(c, submodel=2), "another submodel: found 2 .* expected 1"),
    "model": (lambda c: replace(c, model="resnet8"), "another model: found resnet8"),
    "member": (
        lambda c: replace(c, spec=replace(c.spec, blocks=((0.5,),))),
        "another member: found .*0.5",
    ),
    "loss": (lambda c: replace(c, loss="squared-error"), "another loss: found squared-error"),
    "release": (
        lambda c: replace(c, executorch="1.3.0"),
        "another release of ExecuTorch: found 1.3 .* expected 1.5",
    ),
    "form": (lambda c: replace(c, kind="nefl-trainable-9"), "is of form nefl-trainable-9"),
}


@pytest.mark.parametrize("what", WRONG)
def test_programs_for_something_else_are_refused(
    programs: Path, tiny: dict[str, Any], tmp_path: Path, what: str
) -> None:
    change, message = WRONG[what]
    program = open_trainable(programs / "submodel-1.pte")
    replace(program, card=change(program.card)).save(tmp_path / "submodel-1.pte")
    config = config_from(on_device(tiny, programs=str(tmp_path)))
    with pytest.raises(RunError, match=rf"submodel-1\.pte: .*{message}"):
        assemble(config)


def test_damaged_and_foreign_programs_are_refused(programs: Path, tmp_path: Path) -> None:
    whole = (programs / "submodel-1.pte").read_bytes()
    at = len(whole) // 2
    for data in (whole[:-1], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], b"", b"x" * 99):
        (tmp_path / "bad.pte").write_bytes(data)
        with pytest.raises(RunError, match=r"bad\.pte: "):
            open_trainable(tmp_path / "bad.pte")
    with pytest.raises(RunError, match="is a program that trains, and answers nothing"):
        open_model(programs / "submodel-1.pte")
    with pytest.raises(RunError, match="is no program that trains"):
        trainable_from_json('{"model": "resnet8"}', "x")


def test_given_programs_are_used(
    programs: Path, setting: Setting, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "get_program", None)
    given = assemble(config_from(on_device(tiny, programs=str(programs))))
    found = DeviceClients(given.config, given.family, given.task).program(2)
    assert found.card.submodel == 2
    with pytest.raises(ConfigError, match="belong to engine.client 'executorch'"):
        config_from({**tiny, "engine": {"programs": "x"}})


def test_other_releases_of_executorch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runtime.executorch_version().startswith("1.5.")
    monkeypatch.setattr(runtime, "version", lambda _name: "1.6.2")
    with pytest.raises(ConfigError, match="executorch 1.6.2 is installed.*1.5, which nefl knows"):
        runtime.executorch_version()


def test_a_missing_kernel_is_named() -> None:
    layers = nn.Sequential(nn.Linear(2, 2), nn.SiLU())
    graph = runtime.read_graph(Trained(layers, nn.functional.mse_loss), ones(3, 2), ones(3, 2))
    with pytest.raises(ConfigError, match=r"no kernel for aten::empty_permuted\.out; take other"):
        runtime.lower(graph)


def test_cards_are_written_and_read(programs: Path) -> None:
    program: Program = open_trainable(programs / "submodel-1.pte")
    text = trainable_to_json(program.card)
    assert trainable_from_json(text, "x") == program.card
    with pytest.raises(RunError, match="description cannot be read"):
        trainable_from_json(text.replace('"batch_size":8', '"batch_size":"many"'), "x")


def test_export_refuses_what_cannot_be_trained(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text("[local]\noptimizer = 'adam'\n[data]\nname = 'digits'\n")
    with pytest.raises(ConfigError, match="engine.client 'executorch': local.optimizer 'adam'"):
        nefl.export_trainable(recipe, tmp_path / "out")
    assert not (tmp_path / "out").exists()
