"""Every format: exported from a real run, loaded by its own runtime, compared on real images."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nefl
from nefl.config.reading import with_settings
from nefl.errors import ConfigError, RunError
from nefl.export.formats import FORMATS, format_for, open_model, recognise
from nefl.export.source import open_run, predict_batches

FILES = [name for name, form in FORMATS.items() if not form.is_folder]


@pytest.fixture(scope="session")
def run(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on the real CIFAR-10 where it is at hand, otherwise the one on digits."""
    given = os.environ.get("NEFL_TEST_CIFAR10")
    root = Path(given) if given else Path(__file__).parents[3] / "shared" / "data" / "cifar10"
    if not root.is_dir():
        return digits_run
    # One cache for all processes of a session: decoding CIFAR-10 takes longer than all else here.
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cifar10"
    settings: dict[str, Any] = {
        "rounds": 3,
        "model": {"name": "resnet8", "method": "nefl-wd"},
        "data": {
            "name": "cifar10",
            "root": str(root),
            "cache": str(cache),
            "train": 600,
            "test": 200,
        },
        "clients": {"count": 10, "per_round": 5},
        "local": {"epochs": 1, "batch_size": 16, "learning_rate": 0.05},
        "server": {"evaluate_every": 3, "checkpoint_every": 3},
        "engine": {"name": "serial", "device": "cpu"},
    }
    return nefl.train(settings, tmp_path_factory.mktemp("runs") / "cifar10").path


@pytest.mark.parametrize("name", FILES)
def test_format(run: Path, name: str, tmp_path: Path) -> None:
    out = tmp_path / f"model{FORMATS[name].suffix}"
    done = nefl.export_submodel(run, out, submodel=2, format_name=name, examples=100, measure=False)
    assert done.comparison.difference < 1e-4
    assert done.comparison.agreement == 1
    assert (done.plain.norms_left, done.plain.steps_left) == (0, 0)

    source = open_run(run)
    inputs, _ = source.test_batch(50)
    opened = open_model(out)
    wanted = predict_batches(source.submodel(2), inputs)
    torch.testing.assert_close(opened(inputs), wanted, rtol=0, atol=1e-4)
    card = opened.card
    task = source.setting.task
    assert card.class_names == task.class_names
    assert dict(card.facts) == dict(task.facts)
    assert (card.kind, card.signature) == (task.kind, task.signature)
    (described,) = card.submodels
    assert described.number == 2
    assert described.values == {"accuracy": done.comparison.value}
    assert described.params > 0
    assert described.macs > 0


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_int8(run: Path, name: str, tmp_path: Path, record_property: Any) -> None:
    out = tmp_path / "model"
    done = nefl.export_submodel(
        run, out, submodel=2, format_name=name, quantized=True, examples=100, max_loss=0.2,
        measure=False,
    )  # fmt: skip
    loss = done.comparison.loss
    record_property("accuracy_loss", loss)
    assert loss <= 0.2
    assert done.comparison.difference > 0
    assert open_model(out).card.quantized == "int8"
    float_bytes = 4 * done.card.submodels[0].params
    if name != "torch-export":  # there the description of the graph is most of a small file
        assert done.size < float_bytes


@pytest.mark.long
def test_measured_in_a_process_of_its_own(digits_run: Path, tmp_path: Path) -> None:
    done = nefl.export_submodel(
        digits_run, tmp_path / "m", submodel=1, format_name="safetensors", examples=20
    )
    assert done.measured is not None
    assert 0 < done.measured.latency < 60
    assert done.measured.memory > 0


def test_static_norms_are_measured_over_the_training_data(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    quick["model"]["method"] = "heterofl"
    result = nefl.train(quick, tmp_path / "run")
    done = nefl.export_submodel(
        result.path, tmp_path / "m", submodel=2, format_name="safetensors", measure=False
    )
    measured = result.summary["metrics"]["accuracy"]
    assert done.comparison.value == pytest.approx(measured[1])
    assert done.plain.norms_left == 0
    elastic = nefl.export_family(result.path, tmp_path / "e")
    found = [s.values["accuracy"] for s in elastic.card.submodels]
    assert found == pytest.approx(measured)
    assert nefl.load(tmp_path / "e").model(2)(torch.zeros(1, 1, 8, 8)).isfinite().all()


def test_the_largest_that_fits(digits_run: Path, tmp_path: Path) -> None:
    source = open_run(digits_run)
    costs = [source.describe(k) for k in range(1, 6)]
    budget = nefl.parse_budget(f"params<{costs[2].params + 1},latency<10s")
    done = nefl.export_submodel(
        digits_run, tmp_path / "m", fits=budget, format_name="safetensors", measure=False
    )
    assert done.card.submodels[0].number == 3
    with pytest.raises(ConfigError, match="no submodel fits: the smallest has"):
        nefl.export_submodel(digits_run, tmp_path / "n.onnx", fits=nefl.parse_budget("macs<10"))
    assert not (tmp_path / "n.onnx").exists()


class _Shifted(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 0.01  # type: ignore[no-any-return]


def test_a_mismatch_is_an_error_and_leaves_no_file(
    digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "nefl.export.export.predict_batches",
        lambda m, x: predict_batches(_Shifted(m) if isinstance(m, nn.Module) else m, x),
    )
    out = tmp_path / "m"
    out.write_bytes(b"old")
    with pytest.raises(RunError, match="differ by 0.01"):
        nefl.export_submodel(digits_run, out, submodel=1, format_name="safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert out.read_bytes() == b"old"


def test_a_missing_extra_is_named_with_its_remedy(
    digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("nefl.extras.importlib.import_module", missing)
    for name, extra in (("onnx", "onnx"), ("executorch", "executorch")):
        with pytest.raises(ConfigError, match=rf"pip install 'nefl\[{extra}\]'"):
            nefl.export_submodel(digits_run, tmp_path / "m", submodel=1, format_name=name)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_asked_for(digits_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="format 'coreml' is unknown; there are safetensors"):
        nefl.export_submodel(digits_run, tmp_path / "m", submodel=1, format_name="coreml")
    with pytest.raises(ConfigError, match="give one of"):
        nefl.export_submodel(digits_run, tmp_path / "m")
    with pytest.raises(nefl.NestingError, match="submodel 9: this family has 1 to 5"):
        nefl.export_submodel(digits_run, tmp_path / "m.onnx", submodel=9)
    with pytest.raises(ConfigError, match="is no folder to write to"):
        nefl.export_submodel(digits_run, tmp_path / "no" / "m.onnx", submodel=1)


def test_the_end_of_the_name_decides_where_no_format_is_given(
    digits_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "m.safetensors"
    done = nefl.export_submodel(digits_run, out, submodel=1, examples=20, measure=False)
    assert done.format == "safetensors"
    assert recognise(out) == "safetensors"
    with pytest.raises(ConfigError, match=r"m\.safetensors: ends in .*onnx is asked for"):
        nefl.export_submodel(digits_run, out, submodel=1, format_name="onnx")
    with pytest.raises(ConfigError, match="does not say which format"):
        nefl.export_submodel(digits_run, tmp_path / "m.bin", submodel=1)
    for name in FILES:
        assert format_for(Path(f"m{FORMATS[name].suffix}"), None, family=False) == name
        assert format_for(Path("m.bin"), name, family=False) == name
    assert format_for(Path("m.onnx"), None, family=True) == "onnx"
    with pytest.raises(ConfigError, match="the format elastic is asked for"):
        format_for(Path("m.onnx"), "elastic", family=True)


def test_a_pipe_is_refused_before_anything_is_made(digits_run: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunError, match="pipe: is a pipe, not a file"):
        nefl.export_submodel(digits_run, tmp_path / "pipe", submodel=1, format_name="onnx")
    with pytest.raises(RunError, match="pipe: is a pipe, not a file"):
        nefl.export_family(digits_run, tmp_path / "pipe")


def test_a_damaged_newest_checkpoint_is_passed_over(
    quick: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = nefl.train(quick, tmp_path / "run").path
    newest = run / "checkpoints" / "round-0000004.safetensors"
    newest.write_bytes(newest.read_bytes()[:-9])
    assert nefl.export_family(run, tmp_path / "file", examples=10).card.rounds == 3
    assert len(nefl.evaluate(run)) == 5
    assert caplog.text.count("taking round 3 instead") == 2


def test_a_card_is_plain_json(digits_run: Path, tmp_path: Path) -> None:
    from safetensors import safe_open

    nefl.export_submodel(
        digits_run, tmp_path / "m", submodel=1, format_name="safetensors", measure=False
    )
    with safe_open(tmp_path / "m", "pt") as file:
        card = json.loads(file.metadata()["nefl"])
    assert card["class_names"] == list("0123456789")
    assert card["submodels"][0]["number"] == 1


@pytest.mark.parametrize("method", ["heterofl", "fedrolex", "fjord-od", "depthfl-sd", "scalefl-sd"])
def test_other_methods(quick: dict[str, Any], method: str, tmp_path: Path) -> None:
    changes = {"model.method": method, "model.ratios": [0.3, 0.6, 1.0], "rounds": 1}
    trained = nefl.train(with_settings(quick, changes), tmp_path / "run").path
    for name in ("onnx", "safetensors"):
        done = nefl.export_submodel(
            trained, tmp_path / name, submodel=2, format_name=name, examples=100, measure=False
        )
        assert done.comparison.difference < 1e-4
        assert (done.plain.norms_left, done.plain.steps_left) == (0, 0)
    nefl.export_family(trained, tmp_path / "elastic", examples=100)
    source, again = open_run(trained), nefl.load(tmp_path / "elastic")
    inputs, _ = source.test_batch(20)
    for number in (1, 2, 3):
        wanted = predict_batches(source.submodel(number), inputs)
        torch.testing.assert_close(predict_batches(again.model(number), inputs), wanted)
