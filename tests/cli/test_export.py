"""`nefl export` and `nefl predict` as they are typed."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import nefl
from nefl.cli.app import app
from nefl.errors import ConfigError
from nefl.export.source import open_run


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_from_a_run_to_an_answer(digits_run: Path, tmp_path: Path) -> None:
    out, elastic = tmp_path / "m.safetensors", tmp_path / "e.safetensors"
    said = invoke(
        "export", digits_run, "--submodel", 2, "--format", "safetensors", "-o", out, "--no-measure",
        "--examples", 50, "--quantize", "int8", "--max-loss", 1,
    )  # fmt: skip
    assert "submodel 2 as safetensors, int8" in said
    assert "largest difference of outputs" in said
    report = json.loads(
        invoke("export", digits_run, "--format", "elastic", "-o", elastic, "--json")
    )
    assert len(report["comparisons"]) == 5
    image = np.array(open_run(digits_run).setting.task.test["image"][0, 0])
    Image.fromarray(image).save(tmp_path / "digit.png")
    for file, more in ((out, []), (elastic, ["--submodel", "1"]), (elastic, ["--fits", "macs<9G"])):
        answer = json.loads(invoke("predict", file, tmp_path / "digit.png", "--json", *more))
        (found,) = answer["predictions"]
        assert found["class"] in "0123456789"
    assert found["submodel"] == 5
    assert "digit.png" in invoke("predict", out, tmp_path / "digit.png")


def test_a_bare_export_takes_the_whole_family(digits_run: Path, tmp_path: Path) -> None:
    for name in ("family.safetensors", "family"):
        assert "elastic file" in invoke(
            "export", digits_run, "-o", tmp_path / name, "--examples", 20
        )
        assert len(nefl.load(tmp_path / name)) == 5
    with pytest.raises(ConfigError, match="all submodels go into one file with the format elastic"):
        invoke("export", digits_run, "-o", tmp_path / "x.onnx")


def test_flags_that_contradict_each_other(digits_run: Path, tmp_path: Path) -> None:
    for wrong in (
        ["--format", "elastic", "--submodel", 1],
        ["--submodel", 1, "--quantize", "int4"],
        ["--submodel", 1, "--fits", "macs<1M"],
    ):
        try:
            invoke("export", digits_run, "-o", tmp_path / "x", *wrong)
        except ConfigError:
            continue
        raise AssertionError(wrong)
    assert not (tmp_path / "x").exists()
